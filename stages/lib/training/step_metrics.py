"""Metrics of each step, written while the next step runs: its figures, speed, utilization, waiting time and memory."""

from __future__ import annotations

import collections
import math
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from stages.lib.model import flops
from stages.lib.model.model_recipe import ModelRecipe
from stages.lib.training.objectives.objective import with_load

if TYPE_CHECKING:
    from stages.lib.model.transformer import Transformer
    from stages.lib.training.metrics.callback import Callback
    from stages.lib.training.step import Stepper


WINDOW = 256
"""Number of steps over which the percentiles of data_wait are taken."""

UNKNOWN = "n/a"
SECONDS_PER_DAY = 24 * 60 * 60


class Throughput:
    """Computes the figures of each step of one start of a training, on one rank.

    `activation_checkpointing`: (mode, ratio), for the FLOPs that are recomputed. `num_adapter`: the number of LoRA's
    parameters, if they alone are trained. `clock`: monotonic seconds.
    """

    def __init__(
        self,
        model_config: ModelRecipe,
        vocab_size: int,
        seq_len: int,
        world_size: int,
        device: torch.device,
        activation_checkpointing: tuple[str, float | None] = ("none", None),
        num_adapter: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.world_size, self.device, self.clock = world_size, device, clock
        self.model_flops = flops.flops_per_token(model_config, vocab_size, seq_len, num_adapter)
        self.hardware_flops = self.model_flops + flops.repeated_flops_per_token(
            model_config, seq_len, *activation_checkpointing
        )
        self.device_name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
        self.peak = flops.peak_flops(self.device_name)
        self._waits: collections.deque[float] = collections.deque(maxlen=WINDOW)
        self._first_ended: float | None = None  # when the first step ended
        self._tokens, self._seconds = 0, 0.0  # of the steps since then

    def facts(self) -> dict[str, Any]:
        """Return the formula and the peak behind the figures, for the first event of a start; "n/a" is unknown."""
        return {
            "formula": flops.FORMULA,
            "device": self.device_name,
            "peak_flops": UNKNOWN if self.peak is None else self.peak,
            "model_flops_per_token": self.model_flops,
            "hardware_flops_per_token": self.hardware_flops,
        }

    def step(self, *, seconds: float, data_wait: float, tokens: int) -> dict[str, Any]:
        """Return the figures of a step that has just ended.

        `seconds`: its duration, of which `data_wait` for its batch; `tokens`: of the global batch.

        tokens_per_second is of this step, over all ranks. tokens_per_second_overall is since the end of the first step
        of this start (which sets up memory, communication and compiled code), with saves and evaluations between the
        steps. tokens_per_day is the overall speed per day. mfu and hfu are of this step, "n/a" on a device of unknown
        peak. data_wait is in seconds, its percentiles over the last 256 steps. memory_mb is the peak: allocated memory
        on a GPU, resident memory otherwise.
        """
        rate = overall = tokens / seconds
        now = self.clock()
        if self._first_ended is None:
            self._first_ended = now
        else:
            self._tokens += tokens
            self._seconds += seconds
            # at least the duration of the steps: a step's figures may come a little after its end
            overall = self._tokens / max(self._seconds, now - self._first_ended)
        self._waits.append(data_wait)
        waits = sorted(self._waits)
        return {
            "seconds": seconds,
            "tokens_per_second": rate,
            "tokens_per_second_overall": overall,
            "tokens_per_day": overall * SECONDS_PER_DAY,
            "mfu": self._utilization(rate, self.model_flops),
            "hfu": self._utilization(rate, self.hardware_flops),
            "data_wait": data_wait,
            "data_wait_p50": _percentile(waits, 50),
            "data_wait_p99": _percentile(waits, 99),
            "memory_mb": peak_memory_mb(self.device),
        }

    def _utilization(self, rate: float, flops_per_token: float) -> float | str:
        return UNKNOWN if self.peak is None else rate / self.world_size * flops_per_token / self.peak


def peak_memory_mb(device: torch.device) -> int:
    """Return the peak memory of this process in MB: allocated on a GPU, resident otherwise."""
    if device.type == "cuda":
        return round(torch.cuda.max_memory_allocated(device) / 1e6)
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3)


def _percentile(ascending: Sequence[float], percent: float) -> float:
    """Return the smallest value that at least `percent` of the values do not exceed (nearest rank)."""
    return ascending[math.ceil(len(ascending) * percent / 100) - 1]


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
        # events that a CUDA graph captures have no times; it has one rank, which waits for none
        is_capturing = self.on_gpu and torch.cuda.is_current_stream_capturing()
        self._begin = self._now() if block.training and not is_capturing else None

    def _after(self, *_: Any) -> None:
        if self._begin is not None:
            self._intervals.append((self._begin, self._now()))

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
        self,
        stepper: Stepper,
        throughput: Throughput,
        data_figures: Callable[[int], dict[str, Any]],
        callbacks: Callback,
    ) -> None:
        """`data_figures`: those of metrics.jsonl on the data after a number of samples."""
        recipe, model, device = stepper.recipe, stepper.state.model, stepper.device
        self.names, self.throughput = stepper.names, throughput
        self.data_figures, self.callbacks = data_figures, callbacks
        self.tokens_per_step = recipe.global_batch_size * recipe.seq_len * stepper.objective.rows_per_sample
        self.num_layers = model.recipe.num_hidden_layers
        self.work_seconds = 0.0
        """Seconds that this rank worked in the last written step, without waiting for other ranks."""
        self._device_to_host = AsyncDeviceToHost(device)
        self._straggler = StragglerTimer(model, device)
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
        facts |= self.data_figures(samples[1])
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

    def tokens_at(self, step: int) -> int:
        """Return the number of tokens trained on after `step` steps."""
        return step * self.tokens_per_step


def slowest_rank(hosts: Sequence[str], seconds: Sequence[float]) -> dict[str, Any]:
    """Return {"max", "median", "slowest": host} of the seconds of each rank."""
    slowest = max(range(len(seconds)), key=seconds.__getitem__)
    return {"max": max(seconds), "median": statistics.median(seconds), "slowest": hosts[slowest]}
