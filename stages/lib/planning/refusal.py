"""The refusal of a run that cannot fit the GPU of its profile, with a change that fits."""

from __future__ import annotations

from pathlib import Path

from stages.lib.errors import UserError
from stages.lib.planning import fit, kept
from stages.lib.planning.devices import GIB
from stages.lib.planning.request import Asked


def check(asked: Asked, cache: Path | None) -> None:
    """Raise UserError if a run cannot fit. A run without a GPU always does."""
    gpu = asked.hardware.gpu()
    if gpu is None:
        return
    needed = gpu.needed(kept.memory_of(asked.subject, is_gpu=True, cache=cache).peak)
    if needed > gpu.memory:
        raise UserError(
            f"runs.{asked.name}.{asked.stage} needs {needed / GIB:.1f} GiB on each GPU, and the {gpu.name} has "
            f"{gpu.memory / GIB:.1f} GiB: {_change(asked, cache)}"
        )


def _change(asked: Asked, cache: Path | None) -> str:
    gpu, subject = asked.hardware.gpu(), asked.subject
    assert gpu is not None
    found = next(fit.proposals(subject, gpu, cache), None) or fit.more_ranks(subject, gpu, cache)
    if found is None:
        return "no micro-batch, sharding or activation checkpointing fits, nor do 64 times the nodes"
    return f"it fits with {fit.sentence(subject, found)}"
