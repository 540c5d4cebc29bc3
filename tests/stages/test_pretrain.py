"""Pretraining by its command line: same bits after every kill, same losses on every world size, one line a mistake."""

import contextlib
import hashlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from stages.lib import checkpoint
from tests.stages.data_fixtures import tiny_corpus
from tests.stages.training import (
    HOME,
    MODEL,
    RECIPE,
    change_commit,
    environment,
    events_of,
    launch,
    milestone,
    options,
    run_directory,
    steps_of,
    train,
    train_on,
    weights_of,
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return tiny_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def uninterrupted(corpus, tmp_path_factory):
    """A run of 30 steps on one rank that nothing disturbed."""
    results = tmp_path_factory.mktemp("uninterrupted")
    assert train(corpus, results, 30) == 0
    return results


@pytest.fixture(scope="module")
def uninterrupted_on_two(corpus, tmp_path_factory):
    """The same on two ranks."""
    results = tmp_path_factory.mktemp("uninterrupted_on_two")
    code, error = train_on(2, corpus, results, 30)
    assert code == 0, error
    return results


def test_loss_falls_and_every_step_is_in_the_ledger(uninterrupted):
    entries = steps_of(uninterrupted)
    assert [entry["step"] for entry in entries] == list(range(1, 31))
    assert [entry["samples"] for entry in entries] == [[12 * n, 12 * n + 12] for n in range(30)]
    assert entries[-1]["tokens"] == 30 * 12 * 32
    assert entries[-1]["loss"] < entries[0]["loss"] - 0.5
    for name in ("learning_rate", "grad_norm", "tokens_per_second", "data_wait", "memory_mb", "seconds"):
        assert entries[-1][name] >= 0
    heldout = json.loads(milestone(uninterrupted, 30).read_text())["record"]["heldout"]
    assert set(heldout) == {"a", "b"}
    assert all(0 < scores["bits_per_byte"] < 8 for scores in heldout.values())


def test_ledger_says_what_was_trained_on(corpus, tmp_path, monkeypatch):
    from stages.lib.corpus import Corpus
    from stages.lib.loader import Samples
    from stages.lib.training.step import Stepper

    take, trained_on = Stepper.take, {}

    def recording(self, step, inputs, targets):
        trained_on[step + 1] = inputs.tolist(), targets.tolist()
        return take(self, step, inputs, targets)

    monkeypatch.setattr(Stepper, "take", recording)
    for until in (7, 15):
        assert train(corpus, tmp_path, until) == 0
    samples = Samples(Corpus(corpus), RECIPE["weights"], RECIPE["seq_len"], 0)
    for entry in steps_of(tmp_path):
        inputs, targets = samples.batch(range(*entry["samples"]))
        assert trained_on[entry["step"]] == (inputs.tolist(), targets.tolist())


@pytest.mark.parametrize("wanted", [True, False])
def test_deterministic_kernels_are_used_where_they_are_wanted(corpus, uninterrupted, tmp_path, monkeypatch, wanted):
    import torch

    from stages.lib.training.step import Stepper

    take, seen = Stepper.take, []

    def recording(*arguments):
        seen.append(torch.are_deterministic_algorithms_enabled())
        return take(*arguments)

    monkeypatch.setattr(Stepper, "take", recording)
    assert train(corpus, tmp_path, 3, deterministic=wanted) == 0
    assert seen == [wanted] * 3


@pytest.mark.long
def test_compiled_blocks_train_as_others_do(corpus, uninterrupted, tmp_path):
    assert train(corpus, tmp_path, 8, compile=True) == 0
    for entry, other in zip(steps_of(tmp_path), steps_of(uninterrupted), strict=False):
        assert entry["loss"] == pytest.approx(other["loss"], rel=1e-4 if entry["step"] <= 5 else 1e-1)


@pytest.mark.parametrize("kind", ["full", "selective", "offload"])
def test_activation_checkpointing_changes_no_bit(corpus, uninterrupted, tmp_path, kind):
    assert train(corpus, tmp_path, 30, activation={"kind": kind}) == 0
    assert weights_of(tmp_path, 30) == weights_of(uninterrupted, 30)


def test_run_cut_into_milestones_ends_in_the_same_bits(corpus, uninterrupted, tmp_path):
    for previous, until in pairwise([None, 10, 17, 30]):
        assert train(corpus, tmp_path, until, previous=previous) == 0
    assert weights_of(tmp_path, 30) == weights_of(uninterrupted, 30)
    identities = [json.loads(milestone(path, 30).read_text())["identity"] for path in (tmp_path, uninterrupted)]
    assert identities[0] == identities[1]


def test_killed_run_goes_on_to_the_same_bits(corpus, uninterrupted_on_two, tmp_path):
    process = launch(2, options(corpus, tmp_path, 30), start_new_session=True)
    deadline = time.monotonic() + 120
    while len(steps_of(tmp_path) if (tmp_path / "train").exists() else []) < 13:
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    subprocess.run(["pkill", "-KILL", "-f", str(tmp_path)], check=False)  # the ranks are in sessions of their own
    killed_at = steps_of(tmp_path)[-1]["step"]
    code, error = train_on(2, corpus, tmp_path, 30)
    assert code == 0, error
    assert killed_at < 30
    assert [event["event"] for event in events_of(tmp_path)][:1] == ["start"]
    (resumed,) = [event["step"] for event in events_of(tmp_path) if event["event"] == "resume"]
    assert 5 <= resumed <= killed_at
    assert weights_of(tmp_path, 30) == weights_of(uninterrupted_on_two, 30)


def test_losses_are_those_of_any_world_size_in_float64(corpus, tmp_path):
    losses = []
    for ranks in (1, 2, 3):
        results = tmp_path / str(ranks)
        code, error = train_on(ranks, corpus, results, 50, recipe=RECIPE | {"dtype": "float64"}, steps=50)
        assert code == 0, error
        losses.append([entry["loss"] for entry in steps_of(results)])
    assert len(losses[0]) == 50
    for other in losses[1:]:
        assert max(abs(a - b) for a, b in zip(losses[0], other, strict=True)) < 1e-9


def test_initial_weights_are_those_of_any_world_size(tmp_path):
    script = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    found = []
    for ranks in (1, 2, 3):
        directory = tmp_path / str(ranks)
        command = [*script, f"--nproc-per-node={ranks}", "-m", "tests.stages.write_initial_weights", str(directory)]
        subprocess.run(command, check=True, env=environment(), cwd=HOME, capture_output=True)
        tensors = checkpoint.load_tensors(directory, checkpoint.keys_of(directory))
        found.append({name: tensor.numpy().tobytes() for name, tensor in tensors.items()})
    assert len(found[0]) == 15
    assert found[0] == found[1] == found[2]


def test_bfloat16_trains_and_keeps_float32_weights(corpus, tmp_path):
    recipe = {name: value for name, value in RECIPE.items() if name != "dtype"}
    assert train(corpus, tmp_path, 30, recipe=recipe) == 0
    entries = steps_of(tmp_path)
    assert entries[-1]["loss"] < entries[0]["loss"] - 0.5
    directory = run_directory(tmp_path) / "checkpoints/00000030"
    dtypes = {str(tensor.dtype) for tensor in checkpoint.load_tensors(directory, ["model.head.weight"]).values()}
    assert dtypes == {"torch.float32"}


def test_reached_milestone_is_not_trained_again(corpus, tmp_path):
    assert train(corpus, tmp_path, 10) == 0
    assert train(corpus, tmp_path, 20, previous=10) == 0
    first, entries = milestone(tmp_path, 10).read_bytes(), len(steps_of(tmp_path))
    milestone(tmp_path, 10).unlink()
    assert train(corpus, tmp_path, 10, micro_batch=3) == 0
    assert milestone(tmp_path, 10).read_bytes() == first
    assert len(steps_of(tmp_path)) == entries
    assert train(corpus, tmp_path, 13, previous=10) == 0  # inserted: from the newest checkpoint at or below it
    assert [entry["step"] for entry in steps_of(tmp_path)][entries:] == [11, 12, 13]
    assert checkpoint.complete_steps(run_directory(tmp_path)) == [10, 13, 15, 20]


def test_longer_horizon_goes_on_in_the_same_run(corpus, tmp_path):
    assert train(corpus, tmp_path, 10, steps=10) == 0
    assert train(corpus, tmp_path, 14, previous=10, steps=14) == 0
    assert [entry["step"] for entry in steps_of(tmp_path)] == list(range(1, 15))


def test_only_the_newest_checkpoints_and_the_milestones_are_kept(corpus, tmp_path):
    every = {"every": 2, "keep": 2}
    assert train(corpus, tmp_path, 9, checkpoint=every) == 0
    assert checkpoint.complete_steps(run_directory(tmp_path)) == [8, 9]
    assert train(corpus, tmp_path, 16, checkpoint=every) == 0
    assert checkpoint.complete_steps(run_directory(tmp_path)) == [9, 14, 16]


@pytest.mark.parametrize("damage", ["truncated", "flipped", "uncommitted"])
def test_damaged_checkpoint_is_skipped_and_the_bits_stay(corpus, uninterrupted, tmp_path, damage):
    assert train(corpus, tmp_path, 20) == 0
    assert train(corpus, tmp_path, 25) == 0
    directory = run_directory(tmp_path) / "checkpoints/00000025"
    file = directory / "__0_0.distcp"
    content = bytearray(file.read_bytes())
    if damage == "truncated":
        file.write_bytes(content[:-10])
    elif damage == "flipped":
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    else:
        (directory / "commit.json").unlink()
    assert train(corpus, tmp_path, 30) == 0
    assert "skipping a" in (tmp_path / "log").read_text()
    assert [event["step"] for event in events_of(tmp_path) if event["event"] == "resume"] == [20, 20]
    assert weights_of(tmp_path, 30) == weights_of(uninterrupted, 30)


def test_checkpoint_of_another_corpus_is_refused(corpus, tmp_path, capsys):
    assert train(corpus, tmp_path, 5) == 0
    change_commit(run_directory(tmp_path) / "checkpoints/00000005", corpus="0" * 64)
    assert train(corpus, tmp_path, 10) == 2
    assert "00000005 belongs to another corpus" in capsys.readouterr().err


def test_another_recipe_has_another_run_directory(corpus, tmp_path):
    assert train(corpus, tmp_path, 2) == 0
    assert train(corpus, tmp_path, 2, recipe=RECIPE | {"seed": 1}) == 0
    assert len(list((tmp_path / "train").iterdir())) == 2


def test_previous_milestone_of_another_recipe_is_refused(corpus, tmp_path, capsys):
    assert train(corpus, tmp_path, 2) == 0
    assert train(corpus, tmp_path, 4, recipe=RECIPE | {"seed": 1}, previous=2) == 2
    assert "00000002.json must be a milestone of the same run" in capsys.readouterr().err


def test_live_lease_is_refused_and_a_dead_one_taken_over(corpus, tmp_path, capsys):
    assert train(corpus, tmp_path, 2) == 0
    lease = run_directory(tmp_path) / "lease.json"
    assert not lease.exists()
    with subprocess.Popen(["sleep", "60"]) as other:
        started = int(Path(f"/proc/{other.pid}/stat").read_text().rpartition(")")[2].split()[19])
        held = {"host": socket.gethostname(), "pid": other.pid, "started": started, "job": None}
        lease.write_text(json.dumps(held | {"heartbeat": time.time(), "token": "other"}))
        assert train(corpus, tmp_path, 4) == 2
        assert f"lease.json is held by a live trainer (process {other.pid}" in capsys.readouterr().err
        assert len(steps_of(tmp_path)) == 2
        other.kill()
    assert train(corpus, tmp_path, 4) == 0
    assert not lease.exists()


def test_lease_of_another_host_is_stale_after_five_minutes(corpus, tmp_path):
    assert train(corpus, tmp_path, 2) == 0
    lease = run_directory(tmp_path) / "lease.json"
    held = {"host": "elsewhere", "pid": 1, "started": 1, "job": None, "token": "other"}
    lease.write_text(json.dumps(held | {"heartbeat": time.time() - 200}))
    assert train(corpus, tmp_path, 4) == 2
    lease.write_text(json.dumps(held | {"heartbeat": time.time() - 400}))
    assert train(corpus, tmp_path, 4) == 0


@pytest.mark.parametrize(
    ("recipe", "operation", "message"),
    [
        ({"lerning_rate": 1}, {}, "pretrain.lerning_rate is not a known key"),
        ({"seq_len": "32"}, {}, "pretrain.seq_len must be a whole number, got '32'"),
        ({"global_batch": 0}, {}, "pretrain.global_batch must be a whole number at least 1, got 0"),
        ({"seq_len": 65}, {}, "pretrain.seq_len must be at most model.max_positions (64), got 65"),
        ({"model": MODEL | {"heads": 5}}, {}, "pretrain.model.heads must divide the width 32"),
        ({"model": MODEL | {"kv_heads": 3}}, {}, "pretrain.model.kv_heads must divide heads (4), got 3"),
        ({"weights": {"c": 1}}, {}, "pretrain.weights.c must name a source of the corpus (a, b)"),
        ({"weights": {"a": 1, "b": 1e-6}}, {}, "pretrain.weights.b must be at least 1/4096"),
        ({}, {"micro_batch": 5}, "pretrain.micro_batch must divide the 12 samples a rank"),
        ({}, {"steps": 3}, "--until must be at most pretrain.steps (3), got 4"),
        ({}, {"steps": 0}, "pretrain.steps must be a whole number at least 1, got 0"),
        ({}, {"checkpoint": {"every": 0}}, "pretrain.checkpoint.every must be a whole number at least 1, got 0"),
    ],
)
def test_mistake_is_one_line_and_leaves_nothing(corpus, tmp_path, capsys, recipe, operation, message):
    assert train(corpus, tmp_path, 4, recipe=RECIPE | recipe, **operation) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert not (tmp_path / "train").exists()
    assert not (tmp_path / "models").exists()


def test_global_batch_that_ranks_cannot_share_is_one_line(corpus, tmp_path):
    code, error = train_on(2, corpus, tmp_path, 4, recipe=RECIPE | {"global_batch": 15}, micro_batch=1)
    assert code == 2
    (line,) = error.splitlines()
    assert "pretrain.global_batch must be divisible by the number of ranks (2), got 15" in line
    assert "1, 3, 5, 15 ranks" in line


def test_directory_that_cannot_be_written_is_one_line(corpus, tmp_path, capsys):
    (tmp_path / "train").write_text("a file")
    assert train(corpus, tmp_path, 4) == 2
    assert f"--train-dir {tmp_path / 'train'} must be a directory" in capsys.readouterr().err


def test_shard_that_changed_or_vanished_is_named(tmp_path, capsys):
    corpus = tiny_corpus(tmp_path / "corpus")
    (shard,) = json.loads(corpus.read_text())["identity"]["sources"]["a"]["train"]["shards"][:1]
    path = corpus.parent / shard["path"]
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    assert train(corpus, tmp_path, 4) == 2
    assert f"{path} must have {len(content)} bytes" in capsys.readouterr().err
    path.unlink()
    assert train(corpus, tmp_path, 4) == 2
    assert f"{path} is gone" in capsys.readouterr().err


def test_checkpoint_that_would_run_code_is_refused(corpus, tmp_path, capsys):
    assert train(corpus, tmp_path, 5) == 0
    directory = run_directory(tmp_path) / "checkpoints/00000005"
    payload = b"cos\nsystem\n(S'touch " + os.fsencode(tmp_path / "ran") + b"'\ntR."
    (directory / ".metadata").write_bytes(payload)
    files = json.loads((directory / "commit.json").read_text())["files"]
    described = {"bytes": len(payload), "sha256": hashlib.sha256(payload).hexdigest()}
    change_commit(directory, files=files | {".metadata": described})
    assert train(corpus, tmp_path, 10) == 2
    assert "may not name os.system" in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()


def test_until_a_step_before_the_first_is_refused(corpus, tmp_path, capsys):
    assert train(corpus, tmp_path, 0) == 2
    assert "--until must be at least 1, got 0" in capsys.readouterr().err


@contextlib.contextmanager
def files_of_at_most(num_bytes):
    """As a full disk: a longer write fails with an OSError."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_disk_without_room_is_noticed_before_the_first_step(corpus, tmp_path, capsys):
    with files_of_at_most(60_000):
        assert train(corpus, tmp_path, 30) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "a checkpoint needs files of 309.1 kB" in line
    assert steps_of(tmp_path) == []


@pytest.mark.parametrize("asynchronous", [True, False])
def test_full_disk_is_one_line_and_leaves_no_marker(corpus, uninterrupted, tmp_path, capsys, monkeypatch, asynchronous):
    from stages.lib import space

    every = {"every": 5, "keep": 2, "asynchronous": asynchronous}
    assert train(corpus, tmp_path, 5, checkpoint=every) == 0
    with files_of_at_most(60_000), monkeypatch.context() as patch:
        patch.setattr(space, "require", lambda *_, **__: None)  # somebody else filled it later
        assert train(corpus, tmp_path, 30, checkpoint=every) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "checkpoints/00000010 could not be written" in line
    assert checkpoint.complete_steps(run_directory(tmp_path)) == [5]
    assert events_of(tmp_path)[-1]["event"] == "stop"
    assert not (run_directory(tmp_path) / "lease.json").exists()
    assert train(corpus, tmp_path, 30, checkpoint=every) == 0
    assert weights_of(tmp_path, 30) == weights_of(uninterrupted, 30)


def test_milestone_that_changed_on_the_disk_is_trained_again(corpus, tmp_path):
    assert train(corpus, tmp_path, 3) == 0
    first = weights_of(tmp_path, 3)
    file = run_directory(tmp_path) / "checkpoints/00000003/__0_0.distcp"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert train(corpus, tmp_path, 3) == 0
    assert [entry["step"] for entry in steps_of(tmp_path)] == [1, 2, 3, 1, 2, 3]
    assert weights_of(tmp_path, 3) == first
    assert hashlib.sha256(file.read_bytes()).hexdigest() == first[file.name]


def test_leavings_of_kills_are_swept_and_other_directories_left_alone(corpus, tmp_path):
    assert train(corpus, tmp_path, 2) == 0
    checkpoints = run_directory(tmp_path) / "checkpoints"
    for name in ("00000001", "00000002.copy"):
        (checkpoints / name).mkdir()
        (checkpoints / name / "__0_0.distcp").write_text("torn")
    assert train(corpus, tmp_path, 4) == 0
    assert sorted(path.name for path in checkpoints.iterdir()) == ["00000002", "00000002.copy", "00000004"]


def test_rank_that_fails_alone_ends_the_others_at_once():
    command = ["timeout", "60", HOME / "workflow/launch", "2", "-m", "tests.stages.fail_alone"]  # gloo waits 30 minutes
    ended = subprocess.run(command, env=environment(), cwd=HOME, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "fail_alone: the second rank cannot go on\n" in ended.stderr
    assert "a bug or a fault" not in ended.stderr
