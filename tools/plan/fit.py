"""Changes of a run that fit its GPU: micro-batch, activation checkpointing and sharding, the fastest first.

Faster is what repeats fewer FLOPs, then what sends less between ranks; of those, the largest micro-batch that fits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from stages.lib.errors import UserError
from stages.lib.model import flops
from stages.lib.training.settings.recipe import ActivationCheckpointingRecipe
from tools.plan import estimate, kept
from tools.plan.devices import Device
from tools.plan.subject import Subject

MODES = ("none", "selective", "full", "offload")
SHARDINGS = ("none", "hybrid-grad", "hybrid-full", "grad", "full")
"""From the least communication between nodes to the most; the hybrid ones need several nodes."""

LARGEST = 16
"""Largest micro-batch that is tried."""

STATE_BYTES = 4 + 4 + 2
"""Least bytes per parameter that is trained: weight, gradient, and one moment in bfloat16."""

GATHERED_BYTES = 2
"""Bytes per parameter that stays gathered until the backward pass."""

RANKS = (2, 4, 8, 16, 32, 64)
"""Multiples of the number of ranks that are tried if nothing fits."""


def proposals(subject: Subject, gpu: Device, cache: Path | None) -> Iterator[Subject]:
    """Yield the same training with other settings that fit, the fastest first."""
    for settings in _settings(subject):
        if (found := _largest(settings, gpu, cache)) is not None:
            yield found


def more_ranks(subject: Subject, gpu: Device, cache: Path | None) -> Subject | None:
    """Return the training on the fewest times as many nodes that fits, with full sharding and recomputation."""
    recomputed = ActivationCheckpointingRecipe(mode="full")
    smallest = subject.changed(sharding="full", shard_degree=None, activation_checkpointing=recomputed)
    for factor in RANKS:
        tried = dataclasses.replace(smallest, world_size=subject.world_size * factor)
        if subject.recipe.global_batch_size % tried.world_size:
            break
        if (found := _largest(tried, gpu, cache)) is not None:
            return found
    return None


def _largest(subject: Subject, gpu: Device, cache: Path | None) -> Subject | None:
    """Return the training with the largest micro-batch that fits; None if none does."""
    sizes = (subject.changed(micro_batch_size=size) for size in _micro_batches(subject))
    return next((tried for tried in sizes if not _too_large(tried, gpu) and fits(tried, gpu, cache)), None)


def fits(subject: Subject, gpu: Device, cache: Path | None) -> bool:
    """Return true if a training fits a GPU; false as well if its keys do not fit each other or the ranks."""
    try:
        subject.recipe.check(subject.where)
        subject.check()
        return gpu.needed(kept.memory_of(subject, is_gpu=True, cache=cache).peak) <= gpu.memory
    except UserError:
        return False


def sentence(before: Subject, after: Subject) -> str:
    """Return the keys that differ, with their new values."""
    old, new = (_shown(subject) for subject in (before, after))
    return ", ".join(f"{key} {value}" for key, value in new.items() if old[key] != value)


def _shown(subject: Subject) -> dict[str, object]:
    recipe = subject.recipe
    return {
        "micro_batch_size": recipe.micro_batch_size,
        "activation_checkpointing.mode": recipe.activation_checkpointing.mode,
        "sharding": recipe.sharding,
        "nodes": max(1, subject.world_size // subject.ranks_per_node),
    }


def _settings(subject: Subject) -> Iterator[Subject]:
    several_nodes = subject.world_size > subject.ranks_per_node > 1
    shardings = [name for name in SHARDINGS if several_nodes or not name.startswith("hybrid")]
    if subject.world_size == 1:
        shardings = [subject.recipe.sharding]
    modes = [subject.changed(activation_checkpointing=ActivationCheckpointingRecipe(mode=mode)) for mode in MODES]
    # sorted is stable: full comes before offload, which repeats as much
    for repeated in sorted(modes, key=estimate.repeated_flops_per_token):
        for sharding in shardings:
            yield repeated.changed(sharding=sharding, shard_degree=None)


def _micro_batches(subject: Subject) -> list[int]:
    """Return powers of 2 that divide a rank's share of the batch, the largest first."""
    share = subject.recipe.global_batch_size // subject.world_size
    sizes = [1 << exponent for exponent in range(LARGEST.bit_length())]
    return [size for size in reversed(sizes) if share % size == 0]


def _too_large(subject: Subject, gpu: Device) -> bool:
    """Return true if weights, gradients and the least state of the optimizer alone need more than the GPU has."""
    recipe = subject.recipe
    if recipe.cpu_offload or recipe.lora is not None:
        return False
    hybrid = recipe.shard_degree or subject.ranks_per_node
    shards = {"none": 1, "hybrid-full": hybrid, "hybrid-grad": hybrid}.get(recipe.sharding, subject.world_size)
    parameters = flops.parameter_count(recipe.model, recipe.vocab_size)
    least = parameters * STATE_BYTES // shards
    if shards > 1 and recipe.sharding in ("grad", "hybrid-grad"):
        least += parameters * GATHERED_BYTES
    return gpu.needed(least) > gpu.memory
