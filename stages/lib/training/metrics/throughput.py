"""What a step measured, as the figures of metrics.jsonl: speed, utilization, waiting, memory."""

import collections
import math
import resource
import time

import torch

from stages.lib.model import flops

WINDOW = 256
"""Steps over which the percentiles of the waiting for data are taken."""

UNKNOWN = "n/a"
SECONDS_A_DAY = 24 * 60 * 60


class Throughput:
    """Makes the figures of each step of one start of a training, on one rank.

    `model`: a ModelRecipe. `activation` (kind, ratio): what the backward pass computes again. `clock`: seconds that
    never go back.
    """

    def __init__(
        self,
        model,
        vocab_size,
        seq_len,
        world_size,
        device,
        activation_checkpointing=("none", None),
        clock=time.monotonic,
    ):
        self.world_size, self.device, self.clock = world_size, device, clock
        self.model_flops = flops.flops_per_token(model, vocab_size, seq_len)
        self.hardware_flops = self.model_flops + flops.repeated_flops_per_token(
            model, seq_len, *activation_checkpointing
        )
        self.device_name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
        self.peak = flops.peak_flops(self.device_name)
        self._waits = collections.deque(maxlen=WINDOW)
        self._first_ended = None  # when the first step had ended
        self._tokens = self._seconds = 0  # of the steps since then

    def facts(self):
        """By which formula and peak the figures are made, for the head of the run's records; "n/a" is not known."""
        return {
            "formula": flops.FORMULA,
            "device": self.device_name,
            "peak_flops": UNKNOWN if self.peak is None else self.peak,
            "model_flops_per_token": self.model_flops,
            "hardware_flops_per_token": self.hardware_flops,
        }

    def step(self, *, seconds, data_wait, tokens):
        """The figures of a step that has just ended.

        `seconds`: how long it took, of which `data_wait` for its batch; `tokens`: of the global batch.

        tokens_per_second is of this step alone, over all ranks. tokens_per_second_overall is since the first step of
        this start had ended (that one sets up memory, communication and compiled code), with all that went on between
        the steps: saving, evaluation. tokens_per_day is what the overall speed gives in a day. mfu and hfu are of this
        step, "n/a" on a device whose peak is not known. data_wait is in seconds, its percentiles over the last 256
        steps; memory_mb is the peak: on a GPU of what was allocated, else of the resident memory.
        """
        rate = tokens / seconds
        overall = self._overall(tokens, seconds)
        self._waits.append(data_wait)
        waits = sorted(self._waits)
        return {
            "seconds": seconds,
            "tokens_per_second": rate,
            "tokens_per_second_overall": overall,
            "tokens_per_day": overall * SECONDS_A_DAY,
            "mfu": self._utilization(rate, self.model_flops),
            "hfu": self._utilization(rate, self.hardware_flops),
            "data_wait": data_wait,
            "data_wait_p50": _percentile(waits, 50),
            "data_wait_p99": _percentile(waits, 99),
            "memory_mb": peak_memory_mb(self.device),
        }

    def _overall(self, tokens, seconds):
        now = self.clock()
        if self._first_ended is None:
            self._first_ended = now
            return tokens / seconds
        self._tokens += tokens
        self._seconds += seconds
        # not less than the steps took: a step's figures may come a little after its end
        return self._tokens / max(self._seconds, now - self._first_ended)

    def _utilization(self, rate, flops_per_token):
        return UNKNOWN if self.peak is None else rate / self.world_size * flops_per_token / self.peak


def peak_memory_mb(device):
    """The most memory that this process ever held, in MB: allocated on a GPU, resident elsewhere."""
    if device.type == "cuda":
        return round(torch.cuda.max_memory_allocated(device) / 1e6)
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3)


def _percentile(ascending, percent):
    """The smallest value that at least so many percent of the values do not exceed (nearest rank)."""
    return ascending[math.ceil(len(ascending) * percent / 100) - 1]
