"""Profiles of some steps: traces and tables of torch.profiler, snapshots of GPU memory.

profile/rank0-steps20-24.json.gz     a trace for https://ui.perfetto.dev or chrome://tracing
profile/rank0-steps20-24.txt         the operators that took the most time
profile/rank0-steps20-24.pickle      every allocation, for https://pytorch.org/memory_viz
"""

import contextlib
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.training.metrics.callback import Callback

NUM_ROWS = 30
"""Rows of the table of operators."""


class Profiler(Callback):
    """Profiles the steps A to B inclusive on every rank.

    `steps`: (A, B), or None for no profile. `memory_snapshot`: record the GPU's allocations as well. Outside the range
    a step costs two comparisons. Raises UserError if a snapshot is not possible.
    """

    def __init__(
        self, directory: Path | str, steps: tuple[int, int] | None, memory_snapshot: bool, device: torch.device
    ) -> None:
        if memory_snapshot and steps is None:
            raise UserError("--memory-snapshot requires --profile-steps A:B, the steps that it records")
        if memory_snapshot and device.type != "cuda":
            raise UserError(f"--memory-snapshot requires a GPU, got a training on the {device.type}")
        self.first, self.last = steps or (0, -1)
        self.memory_snapshot, self.device = memory_snapshot, device
        rank = dist.get_rank() if dist.is_initialized() else 0
        self.path = Path(directory) / "profile" / f"rank{rank}-steps{self.first}-{self.last}"
        self._profile: torch.profiler.profile | None = None

    def before_step(self, step: int) -> None:
        """Start to record if `step` is in the range; a training may resume in its middle."""
        if self.first <= step <= self.last and self._profile is None:
            self._start()

    def after_step(self, step: int) -> None:
        """End the step's part of the trace; after the last step, write the profile."""
        if self._profile is None:
            return
        if step >= self.last:
            self.close()
        else:
            self._profile.step()

    def close(self) -> None:
        """Write the profile if the training ends within the range."""
        if self._profile is None:
            return
        profile, self._profile = self._profile, None
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # otherwise the last kernels are missing
        profile.stop()
        # a full disk must not stop the training
        try:
            self._write(profile)
            logger.info("profile of steps %s to %s: %s.txt", self.first, self.last, self.path)
        except (OSError, RuntimeError) as error:
            logger.warning("the profile could not be written to %s: %s", self.path.parent, error)

    def _start(self) -> None:
        os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # otherwise it writes to the terminal
        activities = [torch.profiler.ProfilerActivity.CPU]
        if self.device.type == "cuda":
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        if self.memory_snapshot:
            torch.cuda.memory._record_memory_history(stacks="python")
        self._profile = torch.profiler.profile(activities=activities)
        self._profile.start()

    def _write(self, profile: Any) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.memory_snapshot:
            with contextlib.ExitStack() as stack:
                stack.callback(torch.cuda.memory._record_memory_history, enabled=None)
                torch.cuda.memory._dump_snapshot(f"{self.path}.pickle")
        profile.export_chrome_trace(f"{self.path}.json.gz")
        order = "self_device_time_total" if self.device.type == "cuda" else "self_cpu_time_total"
        table = profile.key_averages().table(sort_by=order, row_limit=NUM_ROWS)
        Path(f"{self.path}.txt").write_text(table, encoding="utf-8")
