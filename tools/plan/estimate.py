"""Time, GPU-hours, cost and disk of a training. Imports no torch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.lib.model import flops
from stages.lib.run_directory import history
from stages.lib.run_directory.events import read_events
from tools.plan.subject import Subject

HOUR = 3600
EXPORT_BYTES = 2
"""Bytes per parameter of an export, bfloat16."""


@dataclass(frozen=True)
class Speed:
    """Tokens per second per GPU, and where the number comes from."""

    tokens_per_second: float
    source: str


def tokens_per_step(subject: Subject) -> int:
    """Return the tokens of a global batch; a pair of preferences has two rows."""
    recipe = subject.recipe
    return recipe.global_batch_size * recipe.seq_len * (1 if recipe.dpo is None else 2)


def flops_per_token(subject: Subject, num_trained: int) -> int:
    """Return the FLOPs of the forward and backward pass per token. `num_trained`: the adapters' parameters, of LoRA."""
    recipe = subject.recipe
    num_adapter = None if recipe.lora is None else num_trained
    return flops.flops_per_token(recipe.model, recipe.vocab_size, recipe.seq_len, num_adapter)


def repeated_flops_per_token(subject: Subject) -> int:
    """Return the FLOPs per token that activation checkpointing computes again."""
    recipe = subject.recipe
    checkpointing = recipe.activation_checkpointing
    return flops.repeated_flops_per_token(recipe.model, recipe.seq_len, checkpointing.mode, checkpointing.ratio)


def gpu_hours(tokens: int, speed: Speed) -> float:
    """Return the hours of all GPUs together."""
    return tokens / speed.tokens_per_second / HOUR


def jobs(milestones: Sequence[int], step_seconds: float, limit: float | None) -> int:
    """Return the number of jobs: one per milestone, and another each time that one reaches the limit, in seconds."""
    if limit is None:
        return len(milestones)
    steps = [step - before for before, step in zip([0, *milestones], milestones, strict=False)]
    return sum(max(1, math.ceil(count * step_seconds / limit)) for count in steps)


def kept_checkpoints(steps: int, every: int, keep: int, milestones: Sequence[int]) -> int:
    """Return the largest number of checkpoints on disk at a time, with the one that is being written.

    Those of milestones are kept, and beside them the newest `keep`.
    """
    saved = sorted({*range(every, steps + 1, every), *milestones})
    most = 0
    for number, step in enumerate(saved):
        newest = saved[max(0, number - keep) : number]  # before the one that is being written
        most = max(most, len({*newest, *(m for m in milestones if m < step), step}))
    return most


def export_bytes(subject: Subject) -> int:
    """Return the bytes of the weights of an export."""
    return EXPORT_BYTES * flops.parameter_count(subject.recipe.model, subject.recipe.vocab_size)


STEPS = 200
"""Number of last steps of a run directory whose median counts."""

STARTS = ("start", "resume")


Speeds = dict[tuple[str, bool], tuple[float, str]]
"""{(torch's name of a GPU, True with float8): (MFU, run directory)}. An MFU is of the bfloat16 peak in any case."""


def mfu_by_device(results: Path) -> Speeds:
    """Return the MFU of the run directories below `results`.

    It is the median over the last steps of the newest run directory. Steps on a device of unknown peak have none.
    """
    directories = sorted(results.glob("runs/*/train/*"), key=lambda path: path.stat().st_mtime)
    return {device: (mfu, str(path)) for path in directories for device, mfu in _of_directory(path).items()}


def _of_directory(directory: Path) -> Mapping[tuple[str, bool], float]:
    events = read_events(directory)
    starts = [event for event in events if event["event"] in STARTS and "device" in event]
    entries = history.entries(directory, events, history.TAIL)
    found = [share for entry in entries if (share := _share(entry.get("mfu"))) is not None][-STEPS:]
    if not starts or not found:
        return {}
    device = str(starts[-1]["device"]).removeprefix("NVIDIA ")
    return {(device, bool(starts[-1].get("float8"))): statistics.median(found)}


def _share(value: Any) -> float | None:
    return value if isinstance(value, float) and 0 < value <= 1 else None
