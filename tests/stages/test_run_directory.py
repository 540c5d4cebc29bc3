"""The run directory of a training: its checkpoints, milestones and lease, and a full disk."""

import hashlib
import json
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest

from stages.lib import manifest
from stages.lib.checkpoints.commit import complete_steps
from tests.helpers.faults import files_of_at_most, flip_bit
from tests.helpers.ranks import run_module
from tests.helpers.training import (
    RECIPE,
    change_commit,
    events_of,
    milestone,
    run_directory,
    steps_of,
    train,
    weights_of,
)


def test_reached_milestone_is_not_trained_again(corpus, tmp_path):
    assert train(corpus, tmp_path, 10) == 0
    assert train(corpus, tmp_path, 20, previous=10) == 0
    first, entries = milestone(tmp_path, 10).read_bytes(), len(steps_of(tmp_path))
    milestone(tmp_path, 10).unlink()
    assert train(corpus, tmp_path, 10, micro_batch_size=3) == 0
    assert milestone(tmp_path, 10).read_bytes() == first
    assert len(steps_of(tmp_path)) == entries
    assert train(corpus, tmp_path, 13, previous=10) == 0  # inserted: from the newest checkpoint at or below it
    assert [entry["step"] for entry in steps_of(tmp_path)][entries:] == [11, 12, 13]
    assert complete_steps(run_directory(tmp_path)) == [10, 13, 15, 20]


def test_what_is_damaged_of_a_milestone_is_made_again(corpus, tmp_path):
    assert train(corpus, tmp_path, 2) == 0
    first, weights = manifest.read(milestone(tmp_path, 2)), weights_of(tmp_path, 2)
    directory = run_directory(tmp_path) / "checkpoints/00000002"
    kept, file = directory / "milestone.json", directory / "__0_0.distcp"
    for damaged in ("[1,2]", kept.read_text().replace('"tokens": ', '"tokens": 1')):
        kept.write_text(damaged)
        assert train(corpus, tmp_path, 2) == 0
        assert kept.read_bytes() == milestone(tmp_path, 2).read_bytes()
        assert manifest.read(milestone(tmp_path, 2)).identity == first.identity
    before = kept.read_bytes()
    change_commit(directory, rollbacks=1)  # the kept manifest is of other files
    assert train(corpus, tmp_path, 2) == 0
    assert [entry["step"] for entry in steps_of(tmp_path)] == [1, 2]
    assert milestone(tmp_path, 2).read_bytes() == kept.read_bytes() != before
    flip_bit(file)
    assert train(corpus, tmp_path, 2) == 0
    assert [entry["step"] for entry in steps_of(tmp_path)] == [1, 2, 1, 2]
    assert weights_of(tmp_path, 2) == weights
    assert hashlib.sha256(file.read_bytes()).hexdigest() == weights[file.name]


def test_only_the_newest_checkpoints_and_the_milestones_are_kept(corpus, tmp_path):
    every = {"every": 2, "keep": 2}
    assert train(corpus, tmp_path, 9, checkpoint=every) == 0
    assert complete_steps(run_directory(tmp_path)) == [8, 9]
    assert train(corpus, tmp_path, 16, checkpoint=every) == 0
    assert complete_steps(run_directory(tmp_path)) == [9, 14, 16]


@pytest.mark.parametrize("damage", ["truncated", "flipped", "uncommitted"])
def test_damaged_checkpoint_is_skipped_and_the_bits_stay(corpus, uninterrupted, tmp_path, damage):
    assert train(corpus, tmp_path, 20) == 0
    assert train(corpus, tmp_path, 25) == 0
    directory = run_directory(tmp_path) / "checkpoints/00000025"
    file = directory / "__0_0.distcp"
    if damage == "truncated":
        file.write_bytes(file.read_bytes()[:-10])
    elif damage == "flipped":
        flip_bit(file)
    else:
        (directory / "commit.json").unlink()
    assert train(corpus, tmp_path, 30) == 0
    assert "skipping a" in (tmp_path / "log").read_text()
    assert [event["step"] for event in events_of(tmp_path) if event["event"] == "resume"] == [20, 20]
    assert weights_of(tmp_path, 30) == weights_of(uninterrupted, 30)


def test_checkpoint_of_another_corpus_and_milestone_of_another_recipe_are_refused(corpus, tmp_path, capsys):
    assert train(corpus, tmp_path, 5) == 0
    assert train(corpus, tmp_path, 10, recipe=RECIPE | {"seed": 1}, previous=5) == 2
    assert "00000005.json is a milestone of another run" in capsys.readouterr().err
    change_commit(run_directory(tmp_path) / "checkpoints/00000005", corpus="0" * 64)
    assert train(corpus, tmp_path, 10) == 2
    assert "00000005 belongs to another corpus" in capsys.readouterr().err


def delete_all(checkpoints, _):
    for directory in checkpoints.iterdir():
        shutil.rmtree(directory)


def delete_the_milestone(checkpoints, _):  # that of step 5 stays
    shutil.rmtree(checkpoints / "00000010")


def delete_a_file(checkpoints, _):
    (checkpoints / "00000010/__0_0.distcp").unlink()


def save_other_bits(checkpoints, corpus):
    delete_all(checkpoints, corpus)
    results = checkpoints.parents[2]
    first = milestone(results, 10).read_bytes()
    assert train(corpus, results, 10, steps=15) == 0
    milestone(results, 10).write_bytes(first)


@pytest.mark.parametrize("damage", [delete_all, delete_the_milestone, delete_a_file, save_other_bits])
def test_milestone_descends_from_the_one_before_or_is_not_trained(corpus, tmp_path, capsys, damage):
    results = tmp_path / "results"
    assert train(corpus, results, 10) == 0
    checkpoints = run_directory(results) / "checkpoints"
    damage(checkpoints, corpus)
    count = len(steps_of(results))
    assert train(corpus, results, 20, previous=10) == 2
    (line,) = capsys.readouterr().err.splitlines()[-1:]
    assert f"--previous {milestone(results, 10)} lists the checkpoint {checkpoints / '00000010'}, which is " in line
    assert f"restore them from a copy, or train it again: delete {milestone(results, 10)} and run the workflow" in line
    assert len(steps_of(results)) == count
    milestone(results, 10).unlink()
    assert train(corpus, results, 10) == 0
    assert train(corpus, results, 20, previous=10) == 0


def test_later_checkpoint_is_used_only_if_it_descends_from_the_milestone_before(corpus, uninterrupted, tmp_path):
    every = {"every": 5, "keep": 9}
    assert train(corpus, tmp_path / "other", 15, steps=15, checkpoint=every) == 0
    other = run_directory(tmp_path / "other") / "checkpoints/00000015"
    (other / "milestone.json").unlink()
    results = tmp_path / "results"
    assert train(corpus, results, 10, checkpoint=every) == 0
    shutil.copytree(other, run_directory(results) / "checkpoints/00000015")
    assert train(corpus, results, 20, previous=10, checkpoint=every) == 0
    assert "00000015 does not descend from" in (results / "log").read_text()
    assert [event["step"] for event in events_of(results) if event["event"] == "resume"] == [10]
    shutil.rmtree(run_directory(results) / "checkpoints/00000020")
    shutil.rmtree(run_directory(results) / "checkpoints/00000010")
    assert train(corpus, results, 30, previous=10, checkpoint=every) == 0
    assert [event["step"] for event in events_of(results) if event["event"] == "resume"] == [10, 15]
    assert weights_of(results, 30) == weights_of(uninterrupted, 30)


def test_milestone_inserted_under_another_schedule_is_not_before_one_that_was_reached(corpus, tmp_path, capsys):
    assert train(corpus, tmp_path, 10, steps=10) == 0
    assert train(corpus, tmp_path, 20, steps=20, previous=10) == 0
    assert train(corpus, tmp_path, 20, steps=20, previous=10) == 0  # the schedule changed after step 10, as it was told
    assert train(corpus, tmp_path, 13, steps=40, previous=10) == 0
    assert train(corpus, tmp_path, 20, steps=40, previous=13) == 2
    (line,) = capsys.readouterr().err.splitlines()[-1:]
    assert "was trained with steps 40, but the milestone of step 20 does not descend from it" in line
    assert train(corpus, tmp_path, 20, steps=40, previous=20) == 2
    assert "is the milestone of step 20, which is not before step 20" in capsys.readouterr().err


def test_jump_of_the_learning_rate_is_told_from_the_first_checkpoint_on_and_once(corpus, tmp_path):
    def warnings(until, steps):
        (tmp_path / "log").unlink(missing_ok=True)
        assert train(corpus, tmp_path, until, steps=steps) == 0
        sentence = f"pretrain.steps was {steps - 30} when step {until - 5} was trained"
        return (tmp_path / "log").read_text().count(sentence)

    assert train(corpus, tmp_path, 13) == 0
    shutil.rmtree(run_directory(tmp_path) / "checkpoints/00000013")  # as if it was killed after the save of step 10
    assert [warnings(15, 60), warnings(20, 60), warnings(25, 90)] == [1, 0, 1]


def hold(lease, pid):
    """Let a process of this machine be the trainer that holds the lease."""
    started = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    held = {"host": socket.gethostname(), "pid": pid, "started": started, "job": None}
    held["boot_id"] = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    held["pid_namespace"] = os.readlink("/proc/self/ns/pid")
    lease.write_text(json.dumps(held | {"heartbeat": time.time(), "token": "other"}))


ELSEWHERE = {"host": "elsewhere", "pid": 1, "started": 1, "job": None, "token": "other"}


def test_live_lease_is_refused_and_a_dead_one_taken_over(corpus, tmp_path, capsys):
    assert train(corpus, tmp_path, 2) == 0
    lease = run_directory(tmp_path) / "lease.json"
    assert not lease.exists()
    lease.write_text(json.dumps(ELSEWHERE | {"heartbeat": time.time()}))
    assert train(corpus, tmp_path, 4) == 2
    assert f"or stop it with `touch {lease.with_name('stop')}` (it saves first)" in capsys.readouterr().err
    with subprocess.Popen(["sleep", "60"]) as other:
        hold(lease, other.pid)
        assert train(corpus, tmp_path, 4) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert f"lease.json is held by a live trainer (process {other.pid} on " in line
        assert line.endswith(f"wait for it, or stop it with `kill {other.pid}` (it saves first)")
        assert len(steps_of(tmp_path)) == 2
        other.kill()
    assert train(corpus, tmp_path, 4) == 0
    assert not lease.exists()


def test_job_of_slurm_waits_for_a_live_trainer(corpus, tmp_path, monkeypatch):
    from stages.lib.training import run_lock

    assert train(corpus, tmp_path, 2) == 0
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setattr(run_lock, "RETRY_SECONDS", 0.1)
    until_waited_for = f"until grep -q 'waiting for another trainer' {tmp_path / 'log'}; do sleep 0.1; done"
    with subprocess.Popen(["sh", "-c", until_waited_for]) as other:
        hold(run_directory(tmp_path) / "lease.json", other.pid)
        assert train(corpus, tmp_path, 4) == 0
        assert other.poll() is not None
    assert (tmp_path / "log").read_text().count("waiting for another trainer") == 1


def test_job_that_waits_for_its_turn_hears_that_its_time_is_up(corpus, tmp_path, monkeypatch, capsys):
    assert train(corpus, tmp_path, 2) == 0
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("CARAVAN_DEADLINE", str(time.time() + 1))
    with subprocess.Popen(["sleep", "60"]) as other:
        hold(run_directory(tmp_path) / "lease.json", other.pid)
        assert train(corpus, tmp_path, 4) == 75
        other.kill()
    assert "stopped by the deadline while waiting for the lease" in capsys.readouterr().err


def test_checkpoint_that_would_run_code_is_refused(corpus, tmp_path, capsys):
    assert train(corpus, tmp_path, 5) == 0
    directory = run_directory(tmp_path) / "checkpoints/00000005"
    payload = b"cos\nsystem\n(S'touch " + os.fsencode(tmp_path / "ran") + b"'\ntR."
    (directory / ".metadata").write_bytes(payload)
    files = json.loads((directory / "commit.json").read_text())["files"]
    described = {"bytes": len(payload), "sha256": hashlib.sha256(payload).hexdigest()}
    change_commit(directory, files=files | {".metadata": described})
    assert train(corpus, tmp_path, 10) == 2
    assert "may not name 'os.system'" in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()


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
    assert complete_steps(run_directory(tmp_path)) == [5]
    assert events_of(tmp_path)[-1]["event"] == "stop"
    assert not (run_directory(tmp_path) / "lease.json").exists()
    assert train(corpus, tmp_path, 30, checkpoint=every) == 0
    assert weights_of(tmp_path, 30) == weights_of(uninterrupted, 30)


def test_trainer_that_lost_its_lease_leaves_the_other_trainers_checkpoint(corpus, uninterrupted, tmp_path, capsys):
    from stages.lib.checkpoints import dcp

    save = dcp.save

    def save_after_the_loss(directory, *arguments):
        if directory.name == "00000030":
            (run_directory(tmp_path) / "lease.json").unlink()
            shutil.copytree(run_directory(uninterrupted) / "checkpoints/00000030", directory)
        save(directory, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dcp, "save", save_after_the_loss)
        assert train(corpus, tmp_path, 30, checkpoint={"every": 10, "keep": 1}) == 2
    assert "was taken over" in capsys.readouterr().err
    directory = run_directory(tmp_path) / "checkpoints"
    assert sorted(path.name for path in directory.iterdir()) == ["00000020", "00000030"]
    assert (directory / "00000030/milestone.json").exists()


def test_milestone_that_is_saved_again_on_the_way_is_kept(corpus, tmp_path):
    every = {"every": 5, "keep": 1}
    assert train(corpus, tmp_path, 5, checkpoint=every) == 0
    first = milestone(tmp_path, 5).read_bytes()
    commit = run_directory(tmp_path) / "checkpoints/00000005/commit.json"
    content = commit.read_text()
    commit.write_text(content.replace('"samples": 60', '"samples": 61'))
    assert train(corpus, tmp_path, 15, checkpoint=every) == 0
    assert complete_steps(run_directory(tmp_path)) == [5, 15]
    assert commit.read_text() == content
    milestone(tmp_path, 5).unlink()
    assert train(corpus, tmp_path, 5, checkpoint=every) == 0
    assert milestone(tmp_path, 5).read_bytes() == first


def test_directory_that_the_nodes_do_not_share_is_one_line(tmp_path):
    code, printed = run_module(2, "tests.helpers.faulty_ranks", ["split_directory", tmp_path])
    assert code == 2
    (line,) = printed.splitlines()
    assert f"must be on a file system that all nodes share: {socket.gethostname()} does not see" in line


def test_leavings_of_kills_are_swept_and_other_directories_left_alone(corpus, tmp_path):
    assert train(corpus, tmp_path, 2) == 0
    checkpoints = run_directory(tmp_path) / "checkpoints"
    for name in ("00000001", "00000003", "00000002.copy", ".00000004.abc.making", ".00000001.abc.removing"):
        (checkpoints / name).mkdir()
        (checkpoints / name / "__0_0.distcp").write_text("torn")
    (checkpoints / "00000003/milestone.json").touch()
    leftovers = [checkpoints.parent / ".watchdog.abc", milestone(tmp_path, 4).with_name(".00000004.json.abc.tmp")]
    leftovers.append(checkpoints / "00000002/.milestone.json.abc.tmp")
    for leftover in leftovers:
        leftover.touch()
    assert train(corpus, tmp_path, 4) == 0
    assert not any(leftover.exists() for leftover in leftovers)
    assert sorted(path.name for path in checkpoints.iterdir()) == ["00000002", "00000002.copy", "00000003", "00000004"]


LEFTOVERS = [".lease.0123", ".lease.stale.4567", ".lease.json.89ab.tmp", ".stopped.json.cdef.tmp", ".watchdog"]


def test_next_start_deletes_what_killed_trainers_left_also_in_a_finished_run(corpus, tmp_path):
    def leave():
        for name in (*LEFTOVERS, "hang/20270131T101500Z-rank0.writing"):
            (directory / name).parent.mkdir(exist_ok=True)
            (directory / name).write_text("left")

    def hidden():
        return [path.name for path in directory.iterdir() if path.name.startswith(".")] + list(directory.glob("hang/*"))

    assert train(corpus, tmp_path, 2) == 0
    directory = run_directory(tmp_path)
    leave()
    assert train(corpus, tmp_path, 4) == 0
    assert hidden() == []
    leave()
    (directory / "lease.json").write_text(json.dumps(ELSEWHERE | {"heartbeat": time.time()}))
    assert train(corpus, tmp_path, 4) == 0  # a live trainer works on a later milestone
    assert (directory / "lease.json").exists() and len(hidden()) == len(LEFTOVERS) + 1
    (directory / "lease.json").write_text(json.dumps(ELSEWHERE | {"heartbeat": 0}))
    assert train(corpus, tmp_path, 4) == 0
    assert not (directory / "lease.json").exists() and hidden() == []
    assert len(steps_of(tmp_path)) == 4


def test_damaged_line_of_a_journal_is_named_and_does_not_stop_the_next_start(corpus, uninterrupted, tmp_path):
    assert train(corpus, tmp_path, 15) == 0
    for name in ("events.jsonl", "metrics.jsonl"):
        path = run_directory(tmp_path) / name
        path.write_bytes(path.read_bytes().replace(b'"step"', b'"st\xe5p"', 1))
    assert train(corpus, tmp_path, 30) == 0
    log = (tmp_path / "log").read_text()
    for name in ("events.jsonl", "metrics.jsonl"):
        assert log.count(f"{name}: skipping 1 line that is damaged or torn by a kill, the first at byte 0") == 1
    assert weights_of(tmp_path, 30) == weights_of(uninterrupted, 30)
