"""The peak memory of a rank by part, from the training step itself under FakeTensorMode.

A step of a deep model is not run in full: all that it allocates per layer is the same in each, so the bytes at the peak
of a segment of the step (a block at either end, the blocks between, the loss, the update) grow by the same number with
each layer. Two shallow models tell both, exactly: a test compares the result with the step of the whole model.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tools.plan.allocations import AllocationLog, Segments
    from tools.plan.fake_step import FakeStep
    from tools.plan.subject import Subject

SHALLOW = (5, 6)
"""Layers of the models that are run; a model of at most as many is run itself."""


@dataclass(frozen=True)
class Memory:
    """The bytes of a rank at the peak of a step."""

    parts: dict[str, int]
    """Bytes by part, see `allocations.PARTS`, at the moment in which most is allocated."""

    segment: str
    """The segment of the step in which that is: start, embedding, forward, loss, backward or update."""

    host: int
    """Bytes in CPU memory per rank, of cpu_offload or of offloaded activations."""

    checkpoint: tuple[int, int]
    """Bytes of a checkpoint: (a rank's share, all ranks)."""

    num_trained: int
    """Number of parameters that are trained: without LoRA all."""

    @property
    def peak(self) -> int:
        """Bytes of all parts."""
        return sum(self.parts.values())


def memory_of(subject: Subject, is_gpu: bool) -> Memory:
    """Return the peak memory of a rank. Raises UserError for a sharding that does not fit the ranks.

    It is the first rank's, which has the largest shards. `is_gpu`: with the kernels that a GPU has.
    """
    from tools.plan import allocations

    recipe = subject.recipe
    left_out: frozenset[str] = frozenset()
    if recipe.cpu_offload:
        left_out |= {allocations.WEIGHTS, allocations.GRADIENTS, allocations.OPTIMIZER}
    is_offloading = recipe.activation_checkpointing.mode == "offload"
    if is_offloading:
        left_out |= {allocations.BLOCK_INPUTS}
    steps = _fake_steps(subject, is_gpu)
    layers, logs = recipe.model.num_hidden_layers, [step.log for step in steps]
    every, kept = (_segments(logs, layers, parts) for parts in (frozenset(), left_out))
    host = max(sum(parts[part] for part in left_out) for parts in every.values())
    share, total, num_trained = (
        _extended(*numbers, layers=layers)
        for numbers in zip(*((*step.checkpoint, step.num_trained) for step in steps), strict=True)
    )
    if is_offloading:
        # on the GPU are the input of the block that runs, and the one that is copied
        for parts in kept.values():
            parts[allocations.ACTIVATIONS] += 2 * _input_bytes(subject)
    segment = max(kept, key=lambda name: sum(kept[name].values()))
    parts = kept[segment]
    parts[allocations.ACTIVATIONS] += parts.pop(allocations.BLOCK_INPUTS, 0)
    found = {part: parts[part] for part in allocations.PARTS}
    return Memory(found, segment.partition("/")[0], host, (share, total), num_trained)


def _fake_steps(subject: Subject, is_gpu: bool) -> list[FakeStep]:
    """Return the step of the whole model, or those of the two shallow ones."""
    from tools.plan import fake_step

    recipe = subject.recipe
    # mode ratio recomputes some of the layers, and Muon deals their matrices out to the ranks
    is_uneven = recipe.activation_checkpointing.mode == "ratio" or recipe.optimizer.name != "adamw"
    if recipe.model.num_hidden_layers <= max(SHALLOW) or is_uneven:
        return [fake_step.take(subject, is_gpu)]
    models = [dataclasses.replace(recipe.model, num_hidden_layers=depth) for depth in SHALLOW]
    return [fake_step.take(subject.changed(model=model), is_gpu) for model in models]


def _segments(logs: Sequence[AllocationLog], layers: int, left_out: frozenset[str]) -> Segments:
    """Return the peaks of all segments at the model's depth."""
    found = [log.segments(left_out) for log in logs]
    return {
        name: Counter({part: _extended(*(each[name][part] for each in found), layers=layers) for part in first})
        for name, first in found[-1].items()
    }


def _extended(*bytes_: int, layers: int) -> int:
    """Return the bytes at a depth, on the line through those at both depths of SHALLOW; those of one model as is."""
    if len(bytes_) == 1:
        return bytes_[0]
    low, high = bytes_
    first, second = SHALLOW
    return low + (high - low) * (layers - first) // (second - first)


def _input_bytes(subject: Subject) -> int:
    """Return the bytes of the input of a block, [B, L, D]."""
    recipe = subject.recipe
    itemsize = {"bfloat16": 2, "float32": 4, "float64": 8}[recipe.dtype]
    rows = recipe.micro_batch_size * (1 if recipe.dpo is None else 2)
    return rows * recipe.seq_len * recipe.model.hidden_size * itemsize
