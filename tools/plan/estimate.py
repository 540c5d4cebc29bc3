"""The plan of a run as plain data: memory, data, disk, time, GPU-hours and cost. Imports no torch."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.lib.model import flops
from stages.lib.run_directory import history
from stages.lib.run_directory.events import read_events
from stages.lib.training.settings.recipe import auto_batch_size
from tools.plan import bound
from tools.plan import memory as memories
from tools.plan import subject as subjects
from tools.plan.memory import Memory
from tools.plan.request import Asked
from tools.plan.subject import Subject

Figures = dict[str, Any]

HOUR = 3600
EXPORT_BYTES = 2
"""Bytes per parameter of an export, bfloat16."""

STEPS = 200
"""Number of last steps of a run directory whose median counts."""

STARTS = ("start", "resume")

Speeds = dict[tuple[str, bool], tuple[float, str]]
"""{(torch's name of a GPU, True with float8): (MFU, run directory)}. An MFU is of the bfloat16 peak in any case."""


@dataclass(frozen=True)
class Speed:
    """Tokens per second per GPU, and where the number comes from."""

    tokens_per_second: float
    source: str


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


def mfu_by_device(results: Path) -> Speeds:
    """Return the MFU of the run directories below `results`.

    It is the median over the last steps of the newest run directory. Steps on a device of unknown peak have none.
    """
    speeds: Speeds = {}
    for directory in sorted(results.glob("runs/*/train/*"), key=lambda path: path.stat().st_mtime):
        events = read_events(directory)
        starts = [event for event in events if event["event"] in STARTS and "device" in event]
        entries = history.entries(directory, events, history.TAIL)
        shares = [mfu for entry in entries if isinstance(mfu := entry.get("mfu"), float) and 0 < mfu <= 1][-STEPS:]
        if starts and shares:
            device = str(starts[-1]["device"]).removeprefix("NVIDIA ")
            speeds[device, bool(starts[-1].get("float8"))] = statistics.median(shares), str(directory)
    return speeds


def plan_of(asked: Asked, measured: Speeds, cache: Path | None) -> Figures:
    """Return the figures of a run. Raises UserError for a sharding that does not fit the ranks."""
    subject, gpu, milestones = asked.subject, asked.hardware.gpu(), asked.milestones
    recipe = subject.recipe
    memory = memories.cached_memory_of(subject, None if gpu is None else gpu.memory, cache)
    num_adapter = None if recipe.lora is None else memory.num_trained
    model: Figures = {
        "parameters": flops.parameter_count(recipe.model, recipe.vocab_size),
        "active_parameters": flops.active_count(recipe.model, recipe.vocab_size),
        "trained_parameters": memory.num_trained,
        "vocab_size": recipe.vocab_size,
        "flops_per_token": flops.flops_per_token(recipe.model, recipe.vocab_size, recipe.seq_len, num_adapter),
        "repeated_flops_per_token": repeated_flops_per_token(subject),
    }
    # a pair of preferences has two rows
    tokens = recipe.global_batch_size * recipe.seq_len * (1 if recipe.dpo is None else 2)
    batch: Figures = {
        "ranks": subject.world_size,
        "global_batch_size": recipe.global_batch_size,
        "micro_batch_size": recipe.micro_batch_size,
        "gradient_accumulation_steps": subject.accumulation,
        "sharding": recipe.sharding,
        "activation_checkpointing": recipe.activation_checkpointing.mode,
        "float8": recipe.float8,
        "cuda_graphs": recipe.cuda_graphs,
        "tokens_per_step": tokens,
        "step_law_batch_size": auto_batch_size(recipe.steps, recipe.seq_len)
        if asked.stage == "pretrain" and recipe.steps
        else None,
        "steps": recipe.steps,
        "tokens": None if recipe.steps is None else tokens * recipe.steps,
        **subjects.validation(recipe, asked.keys, milestones, asked.corpus),
    }
    data = None  # tokens and epochs per source; the examples of a tuning are not counted here
    if asked.stage == "pretrain" and recipe.steps is not None:
        data = subjects.by_source(asked.keys, recipe.steps, recipe.seq_len, asked.corpus)
    share, total = memory.checkpoint
    disk: Figures = {"checkpoint_bytes": total}
    if recipe.steps is not None:
        count = kept_checkpoints(recipe.steps, recipe.checkpoint.every, recipe.checkpoint.keep, milestones)
        exports = EXPORT_BYTES * model["parameters"] * len(milestones)
        disk |= {"checkpoints": count, "checkpoints_bytes": count * total, "exports_bytes": exports}
    copies = share if recipe.checkpoint.asynchronous else 0
    return {
        "model": model,
        "batch": batch,
        "memory": _memory(asked, memory, copies),
        "data": data,
        "disk": disk,
        "bound": _bound(asked, batch, model["flops_per_token"]),
        "time": _time(asked, batch, speed_of(asked, model["flops_per_token"], measured)),
    }


def _memory(asked: Asked, memory: Memory, copies: int) -> Figures:
    gpu = asked.hardware.gpu()
    figures: Figures = {
        "peak_bytes": memory.peak,
        "parts": memory.parts,
        "at": memory.segment,
        "host_bytes_per_node": (memory.host + copies) * asked.subject.ranks_per_node,
    }
    if gpu is None:
        return figures
    needed = gpu.needed(memory.peak)
    return figures | {
        "device": gpu.name,
        "device_bytes": gpu.memory,
        "needed_bytes": needed,
        "fits": needed <= gpu.memory,
    }


def _bound(asked: Asked, batch: Figures, flops_per_token: int) -> Figures | None:
    """Return the least time of a step, by part, and the speed that it allows; None if no ceilings are known."""
    gpu = asked.hardware.gpu()
    if gpu is None or gpu.ceilings is None:
        return None
    if (key := bound.uncounted(asked.subject.recipe)) is not None:
        return {"uncounted": key}
    seconds = bound.seconds_of(asked.subject, gpu.ceilings, gpu.memory)
    rate = batch["tokens_per_step"] / batch["ranks"] / sum(seconds.values())
    return {
        **dataclasses.asdict(gpu.ceilings),
        "seconds": seconds,
        "tokens_per_second": rate,
        "mfu": None if gpu.peak is None else rate * flops_per_token / gpu.peak,
    }


def speed_of(asked: Asked, flops_per_token: int, measured: Speeds) -> Speed | None:
    """Return the speed per GPU: as given, else by the given MFU, else by the measured one; None if none is known."""
    hardware, gpu = asked.hardware, asked.hardware.gpu()
    if hardware.tokens_per_second is not None:
        return Speed(hardware.tokens_per_second, "as given")
    if gpu is None or gpu.peak is None:
        return None
    has_float8 = asked.subject.recipe.float8
    if hardware.mfu is not None:
        mfu, origin = hardware.mfu, "as given"
    elif (gpu.name, has_float8) in measured:
        mfu, directory = measured[gpu.name, has_float8]
        origin = f"measured in {directory}"
    else:
        return None
    of = " of the bfloat16 peak" if has_float8 else ""
    return Speed(mfu * gpu.peak / flops_per_token, f"by an MFU of {mfu:.1%}{of}, {origin}")


def _time(asked: Asked, batch: Figures, speed: Speed | None) -> Figures | None:
    """Return step time, days, jobs, GPU-hours and cost; None if no speed is known, or no number of steps.

    The evaluations count, as if each step took its share of them.
    """
    hardware, steps = asked.hardware, asked.subject.recipe.steps
    if speed is None:
        return None
    step_seconds = batch["tokens_per_step"] / (speed.tokens_per_second * batch["ranks"])
    figures: Figures = {**dataclasses.asdict(speed), "step_seconds": step_seconds}
    if steps is None:
        return figures
    longer = 1 + batch["validation_share"]
    hours = gpu_hours(batch["tokens"], speed) * longer
    limit = None if hardware.minutes is None else hardware.minutes * 60
    return figures | {
        "days": step_seconds * steps * longer / (24 * HOUR),
        "jobs": jobs(asked.milestones or [steps], step_seconds * longer, limit),
        "limit_minutes": hardware.minutes,
        "gpu_hours": hours,
        "cost": None if hardware.price is None else math.ceil(hours * hardware.price * 100) / 100,
    }
