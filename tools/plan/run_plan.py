"""The plan of one run: all figures, as plain data."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

from stages.lib.model import flops
from tools.plan import estimate, kept, subject
from tools.plan.estimate import Speed, Speeds
from tools.plan.memory import Memory
from tools.plan.request import Asked

Figures = dict[str, Any]


def plan_of(asked: Asked, measured: Speeds, cache: Path | None) -> Figures:
    """Return the figures of a run. Raises UserError for a sharding that does not fit the ranks."""
    memory = kept.memory_of(asked.subject, asked.hardware.gpu() is not None, cache)
    return {
        "model": _model(asked, memory),
        "batch": _batch(asked),
        "memory": _memory(asked, memory),
        "data": _data(asked),
        "disk": _disk(asked, memory),
        "time": _time(asked, memory, measured),
    }


def _model(asked: Asked, memory: Memory) -> Figures:
    recipe = asked.subject.recipe
    return {
        "parameters": flops.parameter_count(recipe.model, recipe.vocab_size),
        "active_parameters": flops.active_count(recipe.model, recipe.vocab_size),
        "trained_parameters": memory.num_trained,
        "vocab_size": recipe.vocab_size,
        "flops_per_token": estimate.flops_per_token(asked.subject, memory.num_trained),
        "repeated_flops_per_token": estimate.repeated_flops_per_token(asked.subject),
    }


def _batch(asked: Asked) -> Figures:
    recipe, tokens = asked.subject.recipe, estimate.tokens_per_step(asked.subject)
    return {
        "ranks": asked.subject.world_size,
        "global_batch_size": recipe.global_batch_size,
        "micro_batch_size": recipe.micro_batch_size,
        "gradient_accumulation_steps": asked.subject.accumulation,
        "sharding": recipe.sharding,
        "activation_checkpointing": recipe.activation_checkpointing.mode,
        "float8": recipe.float8,
        "cuda_graphs": recipe.cuda_graphs,
        "tokens_per_step": tokens,
        "steps": recipe.steps,
        "tokens": None if recipe.steps is None else tokens * recipe.steps,
        **subject.validation(recipe, asked.keys, asked.milestones, asked.corpus),
    }


def _memory(asked: Asked, memory: Memory) -> Figures:
    gpu, recipe = asked.hardware.gpu(), asked.subject.recipe
    copies = memory.checkpoint[0] if recipe.checkpoint.asynchronous else 0
    found: Figures = {
        "peak_bytes": memory.peak,
        "parts": memory.parts,
        "at": memory.segment,
        "host_bytes_per_node": (memory.host + copies) * asked.subject.ranks_per_node,
    }
    if gpu is not None:
        needed = gpu.needed(memory.peak)
        found |= {"device": gpu.name, "device_bytes": gpu.memory, "needed_bytes": needed, "fits": needed <= gpu.memory}
    return found


def _data(asked: Asked) -> Figures | None:
    """Return tokens and epochs per source of a pretraining; None for a tuning, whose examples are not counted here."""
    recipe = asked.subject.recipe
    if asked.stage != "pretrain" or recipe.steps is None:
        return None
    return subject.by_source(asked.keys, recipe.steps, recipe.seq_len, asked.corpus)


def _disk(asked: Asked, memory: Memory) -> Figures:
    recipe, total = asked.subject.recipe, memory.checkpoint[1]
    found: Figures = {"checkpoint_bytes": total}
    if recipe.steps is not None:
        count = estimate.kept_checkpoints(
            recipe.steps, recipe.checkpoint.every, recipe.checkpoint.keep, asked.milestones
        )
        exports = estimate.export_bytes(asked.subject) * len(asked.milestones)
        found |= {"checkpoints": count, "checkpoints_bytes": count * total, "exports_bytes": exports}
    return found


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


def _time(asked: Asked, memory: Memory, measured: Speeds) -> Figures | None:
    """Return step time, days, jobs, GPU-hours and cost; None if no speed is known, or no number of steps.

    The evaluations count, as if each step took its share of them.
    """
    recipe, hardware = asked.subject.recipe, asked.hardware
    speed = speed_of(asked, estimate.flops_per_token(asked.subject, memory.num_trained), measured)
    if speed is None:
        return None
    tokens = estimate.tokens_per_step(asked.subject)
    step_seconds = tokens / (speed.tokens_per_second * asked.subject.world_size)
    found: Figures = {**dataclasses.asdict(speed), "step_seconds": step_seconds}
    if recipe.steps is None:
        return found
    longer = 1 + subject.validation(recipe, asked.keys, asked.milestones, asked.corpus)["validation_share"]
    hours = estimate.gpu_hours(tokens * recipe.steps, speed) * longer
    limit = None if hardware.minutes is None else hardware.minutes * 60
    return found | {
        "days": step_seconds * recipe.steps * longer / (24 * estimate.HOUR),
        "jobs": estimate.jobs(asked.milestones or [recipe.steps], step_seconds * longer, limit),
        "limit_minutes": hardware.minutes,
        "gpu_hours": hours,
        "cost": None if hardware.price is None else math.ceil(hours * hardware.price * 100) / 100,
    }
