"""Speed, utilization, waiting time and memory of a step, as metrics.jsonl holds them."""

import collections
import math
import resource
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from stages.lib.model import flops
from stages.lib.model.model_recipe import ModelRecipe

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
        rate = tokens / seconds
        overall = self._overall(tokens, seconds)
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

    def _overall(self, tokens: int, seconds: float) -> float:
        now = self.clock()
        if self._first_ended is None:
            self._first_ended = now
            return tokens / seconds
        self._tokens += tokens
        self._seconds += seconds
        # at least the duration of the steps: a step's figures may come a little after its end
        return self._tokens / max(self._seconds, now - self._first_ended)

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
