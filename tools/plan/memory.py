"""The peak memory of a rank by part, from the training step itself under FakeTensorMode.

A step of a deep model is not run in full: all that it allocates per layer is the same in each, so the bytes at the peak
of a segment of the step (a block at either end, the blocks between, the loss, the update) grow by the same number with
each layer. Two shallow models tell both, exactly: a test compares the result with the step of the whole model.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stages.lib import files, manifest
from tools.plan import bound

if TYPE_CHECKING:
    from tools.plan.fake_step import AllocationLog, Segments
    from tools.plan.subject import Subject

SHALLOW = (5, 6)
"""Layers of the models that are run; a model of at most as many is run itself."""

FILE = "planned_memory.json"
WITHOUT_EFFECT = (
    *("steps", "seed", "schedule", "loss_guard", "deterministic", "global_batch_size"),
    *("checkpoint", "validation", "watchdog", "trackers"),
)
"""Keys of a training that change none of the bytes of a step; `optimizer` has more of them, but is small."""

NUMBERS = ("learning_rate", "beta1", "beta2", "eps", "weight_decay", "max_grad_norm")
HOME = Path(__file__).resolve().parents[2]
CODE = ("tools/plan", "stages/lib/training", "stages/lib/model", "stages/lib/distributed")
"""Folders of the code on which a result depends."""


@dataclass(frozen=True)
class Memory:
    """The bytes of a rank at the peak of a step."""

    parts: dict[str, int]
    """Bytes by part, see `fake_step.PARTS`, at the moment in which most is allocated."""

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


_COMPUTED: dict[str, Memory] = {}
"""{digest of what the memory depends on: memory}, of this process"""


def memory_of(subject: Subject, gpu: int | None) -> Memory:
    """Return the peak memory of a rank. Raises UserError for a sharding that does not fit the ranks.

    It is the first rank's, which has the largest shards. `gpu`: bytes of the GPU, which has kernels and
    chunks of its own; None: on a CPU.
    """
    from tools.plan import fake_step

    recipe = subject.recipe
    layers = recipe.model.num_hidden_layers
    subjects = [subject]
    # mode ratio recomputes some of the layers, and Muon deals their matrices out to the ranks
    is_uneven = recipe.activation_checkpointing.mode == "ratio" or recipe.optimizer.name != "adamw"
    if layers > max(SHALLOW) and not is_uneven:
        models = [dataclasses.replace(recipe.model, num_hidden_layers=depth) for depth in SHALLOW]
        subjects = [subject.changed(model=model) for model in models]
    steps = [fake_step.take(each, gpu) for each in subjects]
    left_out: frozenset[str] = frozenset()
    if recipe.cpu_offload:
        left_out |= {fake_step.WEIGHTS, fake_step.GRADIENTS, fake_step.OPTIMIZER}
    is_offloading = recipe.activation_checkpointing.mode == "offload"
    if is_offloading:
        left_out |= {fake_step.BLOCK_INPUTS}
    logs = [step.log for step in steps]
    whole, on_device = (_segments(logs, layers, parts) for parts in (frozenset(), left_out))
    host = max(sum(parts[part] for part in left_out) for parts in whole.values())
    share, total, num_trained = (
        _extended(*numbers, layers=layers)
        for numbers in zip(*((*step.checkpoint, step.num_trained) for step in steps), strict=True)
    )
    if is_offloading:
        # on the GPU are the input of the block that runs, and the one that is copied: [B, L, D] each
        rows = recipe.micro_batch_size * (1 if recipe.dpo is None else 2)
        numbers = 2 * rows * recipe.seq_len * recipe.model.hidden_size
        for parts in on_device.values():
            parts[fake_step.ACTIVATIONS] += numbers * bound.WIDTHS[recipe.dtype]
    segment = max(on_device, key=lambda name: sum(on_device[name].values()))
    parts = on_device[segment]
    parts[fake_step.ACTIVATIONS] += parts.pop(fake_step.BLOCK_INPUTS, 0)
    ordered = {part: parts[part] for part in fake_step.PARTS}
    return Memory(ordered, segment.partition("/")[0], host, (share, total), num_trained)


def _segments(logs: Sequence[AllocationLog], layers: int, left_out: frozenset[str]) -> Segments:
    """Return the peaks of all segments at the model's depth."""
    of_depths = [log.segments(left_out) for log in logs]
    return {
        name: Counter({part: _extended(*(each[name][part] for each in of_depths), layers=layers) for part in first})
        for name, first in of_depths[-1].items()
    }


def _extended(*bytes_: int, layers: int) -> int:
    """Return the bytes at a depth, on the line through those at both depths of SHALLOW; those of one model as is."""
    if len(bytes_) == 1:
        return bytes_[0]
    low, high = bytes_
    first, second = SHALLOW
    return low + (high - low) * (layers - first) // (second - first)


def cached_memory_of(
    subject: Subject, gpu: int | None, cache: Path | None, ignore_torch_version: bool = False
) -> Memory:
    """Return what `memory_of` does, from the directory `cache` if the same code computed it: a fake step takes seconds.

    Runs that differ in nothing on which their memory depends are computed once. `ignore_torch_version`: also what
    another version of torch computed.
    """
    recipe: dict[str, Any] = dataclasses.asdict(subject.recipe)
    keys = {key: value for key, value in recipe.items() if key not in WITHOUT_EFFECT}
    keys["optimizer"] = {key: value for key, value in keys["optimizer"].items() if key not in NUMBERS}
    code = _code_digest()
    torch_version = None if ignore_torch_version else importlib.metadata.version("torch")
    data = [keys, subject.accumulation, subject.world_size, subject.ranks_per_node, gpu, torch_version]
    digest = f"{code}:{manifest.digest_of(data)}"
    known = {} if cache is None else files.read_cache(cache / FILE)
    if digest in known:
        return Memory(**known[digest] | {"checkpoint": tuple(known[digest]["checkpoint"])})
    if digest not in _COMPUTED:
        _COMPUTED[digest] = memory_of(subject, gpu)
    if cache is not None:
        same_code = {name: value for name, value in known.items() if name.startswith(code)}
        files.write_cache(cache / FILE, same_code | {digest: dataclasses.asdict(_COMPUTED[digest])})
    return _COMPUTED[digest]


@functools.cache
def _code_digest() -> str:
    """Return a digest of the code on which a result depends."""
    sources = sorted(path for folder in CODE for path in (HOME / folder).rglob("*.py"))
    return manifest.digest_of([files.sha256_file(path) for path in sources])[:16]
