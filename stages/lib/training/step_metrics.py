"""Metrics of each step, written while the next step runs."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from stages.lib.training.metrics.device_to_host import AsyncDeviceToHost
from stages.lib.training.metrics.straggler import StragglerTimer
from stages.lib.training.metrics.throughput import Throughput
from stages.lib.training.objectives.balance import with_load

if TYPE_CHECKING:
    from stages.lib.training.callbacks.callback import Callback
    from stages.lib.training.inputs import Run, Samples
    from stages.lib.training.state import State
    from stages.lib.training.step import Stepper


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """A step whose metrics were written."""

    step: int
    samples: list[int]
    """Its samples, [first, last + 1]."""

    loss: float
    grad_norm: float
    bad_steps: int
    """Bad steps in a row, this one included; 0 after a good one."""


class StepMetrics:
    """Collects the metrics of a step, and sends them to `callbacks` one step later, so that the host does not wait."""

    def __init__(
        self, run: Run, state: State, stepper: Stepper, samples: Samples, callbacks: Callback, hosts: Sequence[str]
    ) -> None:
        """`hosts`: the host of each rank."""
        recipe, checkpointing = run.recipe, run.recipe.activation_checkpointing
        self.names, self.samples, self.callbacks, self.hosts = stepper.names, samples, callbacks, hosts
        self.throughput = Throughput(
            run.model_config,
            run.identity.vocab_size,
            recipe.seq_len,
            dist.get_world_size(),
            run.device,
            (checkpointing.mode, checkpointing.ratio),
            None if run.lora is None else state.num_trained(),
        )
        self.tokens_per_step = recipe.global_batch_size * recipe.seq_len * stepper.objective.rows_per_sample
        self.num_layers = run.model_config.num_hidden_layers
        self.work_seconds = 0.0
        """Seconds that this rank worked in the last written step, without waiting for other ranks."""
        self._device_to_host = AsyncDeviceToHost(run.device)
        self._straggler = StragglerTimer(state.model, run.device)
        self._marks: list[Any] = []
        self._pending: dict[str, Any] | None = None
        self._between: dict[str, Any] = {}

    def add(self, **facts: Any) -> None:
        """Add facts on what happens between two steps to the next step's line."""
        self._between |= facts

    def put(
        self,
        numbers: torch.Tensor,
        *,
        step: int,
        samples: list[int],
        learning_rate: float,
        seconds: float,
        data_wait: float,
    ) -> None:
        """Take over a step that was launched. The one before must be written.

        `numbers`: those of `Stepper.names`, on the device.
        """
        self._device_to_host.start(numbers)
        figures = self.throughput.step(seconds=seconds, data_wait=data_wait, tokens=self.tokens_per_step)
        facts = {"step": step, "tokens": self.tokens_at(step), "learning_rate": learning_rate, "samples": samples}
        self._pending = facts | figures | self._between
        self._marks, self._between = self._straggler.pop_intervals(), {}

    def write(self) -> StepResult | None:
        """Write the line of the last step, and an event if it was skipped; None if it is written already."""
        if self._pending is None:
            return None
        facts, self._pending = self._pending, None
        numbers = dict(zip(self.names, self._device_to_host.wait(), strict=True))
        self.work_seconds = facts["data_wait"] + self._straggler.seconds(self._marks)
        bad, bad_steps = bool(numbers.pop("bad")), int(numbers.pop("bad_steps"))
        step, samples, loss, grad_norm = facts["step"], facts["samples"], numbers["loss"], numbers["grad_norm"]
        if bad:
            facts["skipped"] = True
            skipped = {"samples": samples, "loss": str(loss), "grad_norm": str(grad_norm)}
            self.callbacks.event("skip", step, skipped)
        facts |= self.samples.figures(samples[1])
        finite = {name: value if math.isfinite(value) else None for name, value in numbers.items()}
        finite = with_load(finite, self.num_layers)
        self.callbacks.metrics({"step": step, "tokens": facts["tokens"], **finite, **facts, "time": time.time()})
        return StepResult(step=step, samples=samples, loss=loss, grad_norm=grad_norm, bad_steps=bad_steps)

    def write_validation(self, step: int, results: dict[str, Any], seconds: float) -> None:
        """Write the line of an evaluation that took a number of seconds."""
        facts = {"step": step, "tokens": self.tokens_at(step), "validation": results}
        entry = facts | {"validation_seconds": round(seconds, 3), "time": time.time()}
        self.callbacks.metrics(entry)

    def discard(self) -> None:
        """Forget the step that is not written yet."""
        self._pending = None

    def add_ranks(self, seconds: Sequence[float]) -> None:
        """Add the ranks' own seconds of work to the next step's line: {"max", "median", "slowest": host}."""
        self.add(ranks=slowest_rank(self.hosts, seconds))

    def tokens_at(self, step: int) -> int:
        """Return the number of tokens trained on after `step` steps."""
        return step * self.tokens_per_step


def slowest_rank(hosts: Sequence[str], seconds: Sequence[float]) -> dict[str, Any]:
    """Return {"max", "median", "slowest": host} of the seconds of each rank."""
    slowest = max(range(len(seconds)), key=seconds.__getitem__)
    return {"max": max(seconds), "median": statistics.median(seconds), "slowest": hosts[slowest]}
