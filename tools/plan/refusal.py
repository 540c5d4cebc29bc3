"""The refusal of a run that the GPU of its profile cannot train: by float8, or by memory with a change that fits."""

from __future__ import annotations

from pathlib import Path

from stages.lib.errors import UserError
from stages.lib.space import amount
from stages.lib.training.settings import requirements
from tools.plan import devices, fit, kept
from tools.plan.request import Asked


def check(asked: Asked, cache: Path | None) -> None:
    """Raise UserError if a run cannot fit its GPU, or multiply in float8 on it. A run without a GPU passes."""
    gpu = asked.hardware.gpu()
    if gpu is None:
        return
    if gpu.name in devices.WITHOUT_FLOAT8:
        where, capability = f"runs.{asked.name}.{asked.stage}", devices.WITHOUT_FLOAT8[gpu.name]
        requirements.check_float8_device(asked.subject.recipe, where, gpu.name, capability)
    needed = gpu.needed(kept.memory_of(asked.subject, is_gpu=True, cache=cache).peak)
    if needed > gpu.memory:
        raise UserError(
            f"runs.{asked.name}.{asked.stage} needs {amount(needed)} on each GPU, and the {gpu.name} has "
            f"{amount(gpu.memory)}: {_change(asked, cache)}"
        )


def _change(asked: Asked, cache: Path | None) -> str:
    gpu, subject = asked.hardware.gpu(), asked.subject
    assert gpu is not None
    found = next(fit.proposals(subject, gpu, cache), None) or fit.more_ranks(subject, gpu, cache)
    if found is None:
        return "no micro-batch, sharding or activation checkpointing fits, nor do 64 times the nodes"
    return f"it fits with {fit.sentence(subject, found)}"
