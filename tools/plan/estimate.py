"""Time, GPU-hours, cost and disk of a training. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from stages.lib.model import flops
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
