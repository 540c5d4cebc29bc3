"""Pretraining of 1 and 8 billion parameters by the stage itself: loader, checkpoints and metrics beside the step.

The models are those of config/llama3-1b.yaml and llama3-8b.yaml with the small vocabulary of the corpus. A run
directory is deleted once its figures are read: a checkpoint has 12 and 42 GB.
"""

import functools
import shutil
import statistics

from benchmarks import train_gpu
from benchmarks.gpu import correctness, speed
from benchmarks.gpu.session import Step
from stages.lib.run_directory import journal
from stages.lib.run_directory.events import read_events

SAVES = 2
"""Checkpoints of a training."""

UNMEASURED = 5
"""Steps at the start that are not measured: compilation and the optimizer's state."""


def steps(session):
    """Yield the steps."""
    yield correctness.corpus_step(session)
    shapes = ("tiny",) if session.dry else ("llama3-1b", "llama3-8b")
    for shape in shapes:
        name = f"pretrain, {shape}"
        yield Step(name=name, take=functools.partial(_pretrain, session, shape, name), minutes=5)
    name = f"pretrain, {shapes[0]}, killed and resumed"
    yield Step(name=name, take=functools.partial(_killed, session, shapes[0], name), minutes=6)


def keys_of(shape, session):
    """Return (recipe, operation) of a training of a shape of `benchmarks.train_gpu`."""
    model, _ = train_gpu.shape_of(shape)
    recipe = correctness.HALF | {"model": model, "optimizer": {"learning_rate": 3e-4}}
    operation = {"checkpoint": {"every": correctness.length(session) // SAVES, "keep": 1}}
    if shape == "tiny":
        return recipe, operation
    cell, _ = speed.fitting(session, *speed.EQUAL[shape])
    recipe["optimizer"]["state_dtype"] = cell.state_dtype
    recipe |= {"seq_len": cell.seq_len, "global_batch_size": cell.micro_batch_size, "weights_dtype": cell.weights_dtype}
    operation |= {"micro_batch_size": cell.micro_batch_size, "activation_checkpointing": {"mode": cell.mode}}
    return recipe, operation | {"compile": True}


def _pretrain(session, shape, name):
    recipe, operation = keys_of(shape, session)
    if shape == "llama3-8b":  # the disk has space for one checkpoint
        operation["checkpoint"]["every"] = correctness.length(session)
    directory = correctness.train(session, name, name, recipe, operation)
    figures = figures_of(directory)
    shutil.rmtree(directory)
    mfu, stalls = figures["mfu"], figures["stalls"]
    line = (
        f"{figures['tokens_per_second']:,.0f} tokens/s in the median step, "
        f"MFU {f'{mfu:.1%}' if isinstance(mfu, float) else mfu}, "
        f"{figures['data_wait_ms']:.2f} ms for data; checkpoints of {figures['checkpoint_gb']:.1f} GB were written in "
        f"{', '.join(f'{seconds:.1f}' for seconds in figures['saves'])} s"
    )
    return line + (f" and stalled {max(stalls):.2f} s" if stalls else ""), figures


def figures_of(directory):
    """Return the figures of a run directory: of its steps after the first, and of its checkpoints."""
    entries = [entry for entry in journal.read(directory / "metrics.jsonl", lambda entry: True) if "loss" in entry]
    measured = sorted(entries[UNMEASURED:] or entries, key=lambda entry: entry["tokens_per_second"])
    last = max(directory.glob("checkpoints/[0-9]*"))
    size = sum(path.stat().st_size for path in last.rglob("*") if path.is_file())
    return {
        "tokens_per_second": measured[len(measured) // 2]["tokens_per_second"],
        "mfu": measured[len(measured) // 2]["mfu"],
        "data_wait_ms": 1000 * statistics.median(entry["data_wait"] for entry in measured),
        "seconds": [entry["seconds"] for entry in entries],
        "losses": [entry["loss"] for entry in entries],
        "peak_memory_mb": entries[-1]["memory_mb"],
        "checkpoint_gb": size / 1e9,
        "stalls": [entry["checkpoint_stall"] for entry in entries if "checkpoint_stall" in entry],
        "saves": [event["seconds"] for event in read_events(directory) if event["event"] == "save"],
    }


def _killed(session, shape, name):
    recipe, operation = keys_of(shape, session)
    operation["deterministic"] = True
    uncut = correctness.train(session, name, f"{name}, uncut", recipe, operation)
    expected, figures = correctness.weights_of(uncut, correctness.length(session)), figures_of(uncut)
    shutil.rmtree(uncut)
    line, found = correctness.kill_and_resume(session, name, name, recipe, operation, expected)
    shutil.rmtree(correctness.home_of(session, name))
    return f"{line}; {figures['tokens_per_second']:,.0f} tokens/s with deterministic kernels", figures | found
