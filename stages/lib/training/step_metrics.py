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
from torch import nn

from stages.lib.training.metrics.throughput import Throughput
from stages.lib.training.objectives.balance import with_load

if TYPE_CHECKING:
    from stages.lib.model.transformer import Transformer
    from stages.lib.training.inputs import Run, Samples
    from stages.lib.training.metrics.callback import Callback
    from stages.lib.training.state import State
    from stages.lib.training.step import Stepper


class AsyncDeviceToHost:
    """Copies one row of numbers at a time. `wait` waits for the copy, not for later work of the device."""

    def __init__(self, device: torch.device) -> None:
        """`device`: where the rows are."""
        self._cuda = device.type == "cuda"
        self._host: torch.Tensor | None = None
        self._event: torch.cuda.Event | None = None

    def start(self, row: torch.Tensor) -> None:
        """Start to copy a tensor [n]."""
        if not self._cuda:
            self._host = row.clone()
            return
        self._host = torch.empty(row.shape, dtype=row.dtype, pin_memory=True)
        self._host.copy_(row, non_blocking=True)
        self._event = torch.cuda.Event()
        self._event.record()

    def wait(self) -> list[float]:
        """Return the numbers of the last `start`."""
        if self._event is not None:
            self._event.synchronize()
        assert self._host is not None, "start was not called"
        return self._host.tolist()


class StragglerTimer:
    """Times the forward passes of a model's blocks in training, without synchronization with the device.

    The model must be sharded before. torch.compile must not compile the hooks: compile the blocks' forward, not the
    blocks.
    """

    def __init__(self, model: Transformer, device: torch.device) -> None:
        """Register hooks on the model's blocks."""
        self.on_gpu = device.type == "cuda"
        self._intervals: list[tuple[Any, Any]] = []
        self._begin: Any = None
        for block in model.base_model.layers:
            block.register_forward_pre_hook(self._before)  # after FSDP's hook, which waits for the block's weights
            block.register_forward_hook(self._after, prepend=True)  # before FSDP's

    def _before(self, block: nn.Module, *_: Any) -> None:
        self._begin = self._now() if block.training and not self._is_capturing() else None

    def _after(self, *_: Any) -> None:
        if self._begin is not None:
            self._intervals.append((self._begin, self._now()))

    def _is_capturing(self) -> bool:
        """Return true while a CUDA graph is made: events in it have no times. It has one rank, which waits for none."""
        return self.on_gpu and torch.cuda.is_current_stream_capturing()

    def _now(self) -> float | torch.cuda.Event:
        if not self.on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def pop_intervals(self) -> list[tuple[Any, Any]]:
        """Return the intervals since the last call, for `seconds` once the device has reached their end."""
        intervals, self._intervals = self._intervals, []
        return intervals

    def seconds(self, intervals: list[tuple[Any, Any]]) -> float:
        """Return the sum of the intervals in seconds."""
        if self.on_gpu:
            return sum(begin.elapsed_time(end) for begin, end in intervals) / 1e3
        return sum(end - begin for begin, end in intervals)


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
