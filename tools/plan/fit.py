"""Changes of a run that fit its GPU: micro-batch, activation checkpointing and sharding, the fastest first.

Faster is what repeats fewer FLOPs, then what sends less between ranks; of those, the largest micro-batch that fits.
A run that its GPU cannot train is refused with the first of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from stages.lib.errors import UserError
from stages.lib.model import flops
from stages.lib.space import amount
from stages.lib.training.settings import requirements
from stages.lib.training.settings.recipe import ActivationCheckpointingRecipe
from tools.plan import bound, devices, estimate, memory
from tools.plan.devices import Device
from tools.plan.request import Asked
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
    several_nodes = subject.world_size > subject.ranks_per_node > 1
    shardings = [name for name in SHARDINGS if several_nodes or not name.startswith("hybrid")]
    if subject.world_size == 1:
        shardings = [subject.recipe.sharding]
    modes = [subject.changed(activation_checkpointing=ActivationCheckpointingRecipe(mode=mode)) for mode in MODES]
    # sorted is stable: full comes before offload, which repeats as much
    for repeated in sorted(modes, key=estimate.repeated_flops_per_token):
        for sharding in shardings:
            proposal = _largest(repeated.changed(sharding=sharding, shard_degree=None), gpu, cache)
            if proposal is not None:
                yield proposal


def more_ranks(subject: Subject, gpu: Device, cache: Path | None) -> Subject | None:
    """Return the training on the fewest times as many nodes that fits, with full sharding and recomputation."""
    recomputed = ActivationCheckpointingRecipe(mode="full")
    smallest = subject.changed(sharding="full", shard_degree=None, activation_checkpointing=recomputed)
    for factor in RANKS:
        tried = dataclasses.replace(smallest, world_size=subject.world_size * factor)
        if subject.recipe.global_batch_size % tried.world_size:
            break
        if (proposal := _largest(tried, gpu, cache)) is not None:
            return proposal
    return None


def _largest(subject: Subject, gpu: Device, cache: Path | None) -> Subject | None:
    """Return the training with the largest micro-batch, a power of 2, that fits; None if none does."""
    share = subject.recipe.global_batch_size // subject.world_size
    sizes = (1 << exponent for exponent in reversed(range(LARGEST.bit_length())))
    trainings = (subject.changed(micro_batch_size=size) for size in sizes if share % size == 0)
    return next((training for training in trainings if _fits(training, gpu, cache)), None)


def _fits(subject: Subject, gpu: Device, cache: Path | None) -> bool:
    """Return true if a training fits a GPU; false as well if its keys do not fit each other or the ranks."""
    recipe = subject.recipe
    if not recipe.cpu_offload and recipe.lora is None:
        # weights, gradients and the least state of the optimizer alone may need more than the GPU has
        shards = bound.num_shards(subject)
        parameters = flops.parameter_count(recipe.model, recipe.vocab_size)
        least = parameters * STATE_BYTES // shards
        if shards > 1 and recipe.sharding in ("grad", "hybrid-grad"):
            least += parameters * GATHERED_BYTES
        if gpu.needed(least) > gpu.memory:
            return False
    try:
        recipe.check(subject.where)
        subject.check()
        return gpu.needed(memory.cached_memory_of(subject, gpu=gpu.memory, cache=cache).peak) <= gpu.memory
    except UserError:
        return False


def sentence(before: Subject, after: Subject) -> str:
    """Return the keys that differ, with their new values."""
    old, new = (
        {
            "micro_batch_size": subject.recipe.micro_batch_size,
            "activation_checkpointing.mode": subject.recipe.activation_checkpointing.mode,
            "sharding": subject.recipe.sharding,
            "nodes": max(1, subject.world_size // subject.ranks_per_node),
        }
        for subject in (before, after)
    )
    return ", ".join(f"{key} {value}" for key, value in new.items() if old[key] != value)


def check(asked: Asked, cache: Path | None) -> None:
    """Raise UserError if a run cannot fit its GPU, or multiply in float8 on it. A run without a GPU passes."""
    gpu = asked.hardware.gpu()
    if gpu is None:
        return
    if gpu.name in devices.WITHOUT_FLOAT8:
        where, capability = f"runs.{asked.name}.{asked.stage}", devices.WITHOUT_FLOAT8[gpu.name]
        requirements.check_capability(asked.subject.recipe, where, gpu.name, capability)
    needed = gpu.needed(memory.cached_memory_of(asked.subject, gpu=gpu.memory, cache=cache).peak)
    if needed > gpu.memory:
        fitting = next(proposals(asked.subject, gpu, cache), None) or more_ranks(asked.subject, gpu, cache)
        change = "no micro-batch, sharding or activation checkpointing fits, nor do 64 times the nodes"
        if fitting is not None:
            change = f"it fits with {sentence(asked.subject, fitting)}"
        raise UserError(
            f"runs.{asked.name}.{asked.stage} needs {amount(needed)} on each GPU, and the {gpu.name} has "
            f"{amount(gpu.memory)}: {change}"
        )
