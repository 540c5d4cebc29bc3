"""The refusal of a run that the GPU of its profile cannot train: by float8, or by memory with a change that fits."""

from __future__ import annotations

from pathlib import Path

from stages.lib.errors import UserError
from stages.lib.space import amount
from stages.lib.training.settings import requirements
from tools.plan import devices, fit, memory
from tools.plan.request import Asked


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
        fitting = next(fit.proposals(asked.subject, gpu, cache), None) or fit.more_ranks(asked.subject, gpu, cache)
        change = "no micro-batch, sharding or activation checkpointing fits, nor do 64 times the nodes"
        if fitting is not None:
            change = f"it fits with {fit.sentence(asked.subject, fitting)}"
        raise UserError(
            f"runs.{asked.name}.{asked.stage} needs {amount(needed)} on each GPU, and the {gpu.name} has "
            f"{amount(gpu.memory)}: {change}"
        )
