"""Results of `memory_of` that are kept between calls: a step under FakeTensorMode takes seconds."""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
from pathlib import Path
from typing import Any

from stages.lib import files, manifest
from tools.plan import memory
from tools.plan.memory import Memory
from tools.plan.subject import Subject

FILE = "planned_memory.json"
WITHOUT_EFFECT = (
    *("steps", "seed", "schedule", "loss_guard", "compile", "deterministic"),
    *("checkpoint", "validation", "watchdog", "trackers"),
)
"""Keys of a training that change none of the bytes of a step; `optimizer` has more of them, but is small."""

NUMBERS = ("learning_rate", "beta1", "beta2", "eps", "weight_decay", "max_grad_norm")
HOME = Path(__file__).resolve().parents[2]
CODE = ("tools/plan", "stages/lib/training", "stages/lib/model", "stages/lib/distributed")
"""Folders of the code on which a result depends."""


def memory_of(subject: Subject, is_gpu: bool, cache: Path | None) -> Memory:
    """Return what `memory.memory_of` does, from the directory `cache` if it was computed by the same code."""
    if cache is None:
        return _computed(_Key(subject, is_gpu))
    key = _Key(subject, is_gpu)
    known = files.read_cache(cache / FILE)
    if (found := known.get(key.digest)) is not None:
        return Memory(**found | {"checkpoint": tuple(found["checkpoint"])})
    made = _computed(key)
    same_code = {name: value for name, value in known.items() if name.startswith(_code())}
    files.write_cache(cache / FILE, same_code | {key.digest: dataclasses.asdict(made)})
    return made


class _Key:
    """A subject by what its memory depends on, so that runs that differ in nothing else are computed once."""

    def __init__(self, subject: Subject, is_gpu: bool) -> None:
        self.subject, self.is_gpu = subject, is_gpu
        recipe: dict[str, Any] = dataclasses.asdict(subject.recipe)
        kept = {key: value for key, value in recipe.items() if key not in WITHOUT_EFFECT and key != "global_batch_size"}
        kept["optimizer"] = {key: value for key, value in kept["optimizer"].items() if key not in NUMBERS}
        data = [kept, subject.accumulation, subject.world_size, subject.ranks_per_node, is_gpu]
        self.digest = f"{_code()}:{manifest.digest_of(data)}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)


@functools.cache
def _computed(key: _Key) -> Memory:
    return memory.memory_of(key.subject, key.is_gpu)


@functools.cache
def _code() -> str:
    """Return a digest of the code on which a result depends, and of torch's version."""
    sources = sorted(path for folder in CODE for path in (HOME / folder).rglob("*.py"))
    content = [files.sha256_file(path) for path in sources]
    return manifest.digest_of([importlib.metadata.version("torch"), *content])[:16]
