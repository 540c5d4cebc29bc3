"""Start trainings in tests, and read their results."""

import json
import math
import subprocess
import sys
import time
from pathlib import Path

from stages import pretrain
from stages.lib import manifest
from tests.helpers import processes
from tests.helpers.ranks import run_module

HOME = Path(__file__).resolve().parents[2]
MODEL = {
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "tie_word_embeddings": True,
    "max_position_embeddings": 64,
}
MODELS = {
    "llama": {},
    "bias": {"attention_bias": True, "head_dim": 12},
    "mistral": {"architecture": "mistral", "sliding_window": 12},
    "mixtral": {"architecture": "mixtral", "num_local_experts": 3, "router_aux_loss_coef": 0.1},
    "qwen3": {"architecture": "qwen3", "head_dim": 16},
}
"""Keys that make MODEL another architecture. The window is shorter than a row."""

RECIPE = {
    "model": MODEL,
    "weights": {"a": 3, "b": 1},
    "seq_len": 32,
    "global_batch_size": 12,
    "dtype": "float32",
    "optimizer": {"learning_rate": 1e-2},
    "schedule": {"warmup_steps": 5},
}
OPERATION = {
    "steps": 30,
    "micro_batch_size": 2,
    "checkpoint": {"every": 5, "keep": 2},
    "validation": {"every": 1000, "tokens": 640},
}


BASE_STEPS = 8
"""Steps of the run `base` that tests tune: the fixture `pretrained`."""


def options(corpus, results, until, recipe=RECIPE, previous=None, **operation):
    """Return the arguments of stages.pretrain for a milestone under `results`."""
    made = [
        *("--corpus", str(corpus), "--until", str(until), "--train-dir", str(results / "train")),
        *("--output", str(milestone(results, until)), "--log", str(results / "log")),
        *("--recipe", json.dumps(recipe), "--operation", json.dumps(OPERATION | operation)),
    ]
    return made + (["--previous", str(milestone(results, previous))] if previous else [])


def train(*arguments, **keywords):
    """Run the stage in this process; return its exit code."""
    return pretrain.main(options(*arguments, **keywords))


def launch(ranks, arguments, stage="pretrain", **keywords):
    """Start a stage with the launcher; return the running process."""
    command = [HOME / "workflow/launch", str(ranks), "-m", f"stages.{stage}", *arguments]
    return subprocess.Popen(command, env=environment(), text=True, stderr=subprocess.PIPE, **keywords)


def train_on(ranks, *arguments, **keywords):
    """Run the stage on several ranks; return (exit code, what they printed)."""
    return run_module(ranks, "stages.pretrain", options(*arguments, **keywords))


def check_two_ranks(corpus, directory, recipe):
    """Train 6 steps on one rank and on two, in float64: they must see the same data and have the same losses."""
    recipe = recipe | {"dtype": "float64"}
    assert train(corpus, directory / "one", 6, recipe=recipe) == 0
    code, error = train_on(2, corpus, directory / "two", 6, recipe=recipe)
    assert code == 0, error
    for one, two in zip(steps_of(directory / "one"), steps_of(directory / "two"), strict=True):
        assert math.isclose(one["loss"], two["loss"], rel_tol=1e-12)
        assert one["source_tokens"] == two["source_tokens"]


def run_on(ranks, module, *arguments):
    """Run a module of the tests on several ranks; it must exit with 0."""
    code, printed = run_module(ranks, module, arguments)
    assert code == 0, printed


def environment():
    """Return the environment in which the launcher finds this checkout and this Python."""
    import os

    return os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(HOME), os.environ.get("PYTHONPATH")])),  # perhaps another torch
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }


def milestone(results, step):
    """Return the path of a milestone's manifest."""
    return results / "models" / f"{step:08d}.json"


def run_directory(results):
    """Return the only run directory under `results`."""
    (directory,) = (results / "train").iterdir()
    return directory


def steps_of(results):
    """Return the training entries of metrics.jsonl, in the order in which they were written; [] before the first."""
    if not list(results.glob("train/*/metrics.jsonl")):
        return []
    lines = (run_directory(results) / "metrics.jsonl").read_text().splitlines(keepends=True)
    whole = [line for line in lines if line.endswith("\n")]  # the trainer may be writing one
    return [entry for entry in map(json.loads, whole) if "loss" in entry]


def saved(results):
    """Return the steps of the finished checkpoints of a training that may not have begun."""
    return [int(path.parent.name) for path in results.glob("train/*/checkpoints/[0-9]*/commit.json")]


def wait_until(ready, process, seconds=120):
    """Wait for `ready()`; fails if `process`, whose stderr is a pipe, ends before it, or after `seconds`."""
    until = time.monotonic() + seconds
    while not ready():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < until, f"it did not happen in {seconds} seconds"
        time.sleep(0.01)


def kill_all(process):
    """SIGKILL a launcher and its ranks, which have sessions of their own, and wait until all have ended."""
    started = processes.with_descendants({process.pid})
    processes.kill(started)
    process.communicate()
    while any(map(processes.is_alive, started)):
        time.sleep(0.01)


def kill_when_saved(results, stage, arguments):
    """Start a stage on one process, and SIGKILL it when its first checkpoint is complete."""
    command = [sys.executable, "-m", f"stages.{stage}", *arguments]
    process = subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True)
    wait_until(lambda: saved(results), process)
    kill_all(process)


def refused(capsys, corpus, results, **keywords):
    """Train, which must be refused in one line before there is a run directory; return the line."""
    capsys.readouterr()
    assert train(corpus, results, 4, **keywords) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert not (results / "train").exists() and not (results / "models").exists()
    return line


def before_each_step(monkeypatch, do):
    """Call `do(step, *batch)` before each step that this test's trainings take, counted from 0."""
    from stages.lib.training.step import Stepper

    take = Stepper.take

    def take_after(self, step, *batch):
        do(step, *batch)
        return take(self, step, *batch)

    monkeypatch.setattr(Stepper, "take", take_after)


def events_of(results):
    """Return the events of a run, in order."""
    return [json.loads(line) for line in (run_directory(results) / "events.jsonl").read_text().splitlines()]


def tensors_of(results, step, prefix=""):
    """Return the bytes of each tensor of a checkpoint whose key begins with `prefix`."""
    from stages.lib.checkpoints import dcp

    directory = run_directory(results) / f"checkpoints/{step:08d}"
    keys = [key for key in dcp.keys_of(directory) if key.startswith(prefix)]
    return {name: tensor.numpy().tobytes() for name, tensor in dcp.load_tensors(directory, keys).items()}


def weights_of(results, step):
    """Return the sha256 of each tensor file of a checkpoint: equal bits have equal hashes."""
    commit = json.loads((run_directory(results) / "checkpoints" / f"{step:08d}" / "commit.json").read_text())
    return {name: file["sha256"] for name, file in commit["files"].items() if name.endswith(".distcp")}


def change_commit(directory, **keys):
    """Change keys of a checkpoint's commit.json, None removes one; the marker stays valid, with other content."""
    path = directory / "commit.json"
    commit = json.loads(path.read_text()) | keys | {"sha256": None}
    commit = {key: value for key, value in commit.items() if value is not None}
    path.write_text(json.dumps(commit | {"sha256": manifest.digest_of(commit)}))
