"""TensorBoard and Weights & Biases read back the metrics that a training wrote."""

import builtins
import json
import re
import struct
import subprocess
import sys
import time

import pytest

from stages.lib import log, recipe
from stages.lib.errors import UserError
from stages.lib.training.metrics.trackers import TrackerRecipe, Trackers
from tests.helpers.training import environment

ENTRY = {"step": 1, "loss": 5.0, "mfu": "n/a", "grad_norm": None, "samples": [0, 8], "time": 1e9, "skipped": True}


@pytest.fixture
def offline(monkeypatch, tmp_path):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("HOME", str(tmp_path))


def trackers(directory, step=0, **keys):
    made = recipe.load(TrackerRecipe, keys, "pretrain.trackers")
    return Trackers(made, directory, "base", {"digest": "0123", "peak_flops": "n/a"}, step)


def scalars(directory):
    """{name: {step: value}} as TensorBoard's own reader gives it."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(directory / "tensorboard")).Reload()
    return {name: {event.step: event.value for event in read.Scalars(name)} for name in read.Tags()["scalars"]}


def wandb_records(directory):
    """The records of each offline run's file: blocks of 32 KiB, a header of 7 bytes (LevelDB's log) before each."""
    from wandb.proto import wandb_internal_pb2

    for path in sorted(directory.glob("wandb/offline-run-*/*.wandb")):
        data, at, part = path.read_bytes(), 7, b""
        while at + 7 <= len(data):
            if 32768 - at % 32768 < 7:
                at += 32768 - at % 32768
                continue
            length, kind = struct.unpack_from("<HB", data, at + 4)
            part += data[at + 7 : at + 7 + length]
            at += 7 + length
            if kind in (1, 4):  # whole, or a last part
                record = wandb_internal_pb2.Record()
                record.ParseFromString(part)
                part = b""
                yield record


def history(directory):
    """Return the logged metrics, in no order: {name: value}."""
    items = [record.history.item for record in wandb_records(directory) if record.HasField("history")]
    return [
        {item.nested_key[0] if item.nested_key else item.key: json.loads(item.value_json) for item in i} for i in items
    ]


def test_tensorboard_reads_numbers_by_name_and_leaves_out_the_rest(tmp_path):
    shown = trackers(tmp_path, tensorboard=True)
    shown.metrics(ENTRY)
    shown.metrics({"step": 1, "validation": {"web": {"loss": 4.5, "loss_bits_per_byte": 2.0}}})
    shown.close()
    assert scalars(tmp_path) == {
        "loss": {1: 5.0},
        "skipped": {1: 1.0},
        "validation/web/loss": {1: 4.5},
        "validation/web/loss_bits_per_byte": {1: 2.0},
    }


def test_validation_losses_of_other_text_are_another_curve_also_after_a_resume(tmp_path):
    def entry(step, text):
        return {"step": step, "tokens": 96, "validation": {"web": {"loss": 4.0 + step, "text": text}}}

    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(entry(n, "old")) + "\n" for n in (1, 2)))
    resumed = trackers(tmp_path, step=2, tensorboard=True)
    for step, text in ((3, "new"), (4, "old"), (5, "new")):
        resumed.metrics(entry(step, text))
    resumed.close()
    curves = {name: points for name, points in scalars(tmp_path).items() if "loss" in name}
    assert curves == {"validation/web (text new)/loss": {3: 7.0, 5: 9.0}, "validation/web/loss": {4: 8.0}}


def test_steps_after_a_resume_or_a_rollback_replace_those_of_before(tmp_path):
    killed = trackers(tmp_path, tensorboard=True)
    for step in range(1, 9):
        killed.metrics({"step": step, "loss": 5.0})
    killed.close()
    resumed = trackers(tmp_path, step=5, tensorboard=True)
    for step in (6, 7):
        resumed.metrics({"step": step, "loss": 4.0})
    resumed.close()
    assert scalars(tmp_path)["loss"] == {1: 5, 2: 5, 3: 5, 4: 5, 5: 5, 6: 4, 7: 4}
    rolled_back = trackers(tmp_path, step=7, tensorboard=True)
    rolled_back.event("rollback", 1, {})
    rolled_back.metrics({"step": 2, "loss": 3.0})
    rolled_back.close()
    assert scalars(tmp_path)["loss"] == {1: 5, 2: 3}


@pytest.mark.long
def test_a_wandb_run_goes_on_under_the_same_id(tmp_path, offline):
    for step in (0, 1):
        shown = trackers(tmp_path, step=step, wandb="caravan")
        shown.metrics(ENTRY | {"step": step + 1})
        shown.close()
    deadline = time.monotonic() + 20
    while len(history(tmp_path)) < 2 and time.monotonic() < deadline:  # its service writes behind our back
        time.sleep(0.1)
    kept = json.loads((tmp_path / "wandb.json").read_text())
    runs = [record.run for record in wandb_records(tmp_path) if record.HasField("run")]
    assert {(run.run_id, run.project, run.display_name) for run in runs} == {(kept["id"], "caravan", "base")}
    assert {"digest", "peak_flops"} <= {update.key for run in runs for update in run.config.update}
    figures = [{key: made[key] for key in made if not key.startswith("_")} for made in history(tmp_path)]
    assert sorted(figures, key=lambda made: made["step"]) == [
        {"loss": 5, "skipped": 1, "step": 1},
        {"loss": 5, "skipped": 1, "step": 2},
    ]


def test_another_project_gets_another_run(tmp_path, offline):
    ids = []
    for project in ("a", "b"):
        trackers(tmp_path, wandb=project).close()
        ids.append(json.loads((tmp_path / "wandb.json").read_text())["id"])
    assert ids[0] != ids[1]


def test_nothing_is_written_by_default(tmp_path):
    shown = trackers(tmp_path)
    shown.metrics(ENTRY)
    shown.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("package", "keys", "sentence"),
    [
        ("tensorboard", {"tensorboard": True}, "must be false if the package tensorboard is not installed, got true"),
        ("wandb", {"wandb": "caravan"}, "must be left out if the package wandb is not installed, got 'caravan'"),
    ],
)
def test_a_missing_package_is_one_sentence_that_names_the_key(tmp_path, monkeypatch, package, keys, sentence):
    real = builtins.__import__

    def without(name, *arguments):
        if name.split(".")[0] == package or name == f"torch.utils.{package}":
            raise ModuleNotFoundError(f"No module named {name!r}")
        return real(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UserError, match=f"^trackers.{package} {sentence}$"):
        trackers(tmp_path, **keys)


def test_without_a_login_wandb_is_refused_in_one_sentence(tmp_path):
    variables = {name: value for name, value in environment().items() if not name.startswith("WANDB_")}
    command = [sys.executable, "-c", START, str(tmp_path)]  # wandb reads its variables once a process
    variables |= {"HOME": str(tmp_path)}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True, timeout=60)
    assert re.match(r"trackers.wandb could not start \(No API key.*\); set WANDB_API_KEY, or set", done.stdout)


START = """
import sys
from stages.lib.errors import UserError
from stages.lib.training.metrics.trackers import TrackerRecipe, Trackers
from tests.helpers.training import environment

try:
    Trackers(TrackerRecipe(wandb="caravan"), sys.argv[1], "base", {}, 0)
except UserError as error:
    print(error)
"""


def test_a_monitor_that_fails_is_left_out_and_the_training_goes_on(tmp_path, monkeypatch):
    log.to(tmp_path / "log")
    broken = trackers(tmp_path, tensorboard=True)
    monkeypatch.setattr("torch.utils.tensorboard.SummaryWriter.add_scalar", _full)
    broken.metrics(ENTRY)
    broken.metrics(ENTRY | {"step": 2})
    broken.close()
    said = "TensorBoard failed and receives no more metrics: No space left on device"
    assert (tmp_path / "log").read_text().count(said) == 1


def _full(*_):
    raise OSError("No space left on device")
