"""Status of all ranks between two steps: requests to stop, failed saves, seconds of work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stages.lib.distributed.async_all_gather import AsyncAllGather
from stages.lib.training.faults.stop_requests import REASONS, StopRequested, StopRequests

if TYPE_CHECKING:
    from stages.lib.checkpoints.async_checkpointer import AsyncCheckpointer
    from stages.lib.training.step_metrics import StepMetrics


class RankStatus:
    """Gathers the status of all ranks without waiting: each poll reads what the ranks sent at the poll before."""

    def __init__(self, requests: StopRequests, checkpointer: AsyncCheckpointer, step_metrics: StepMetrics) -> None:
        self.requests, self.checkpointer, self.step_metrics = requests, checkpointer, step_metrics
        self._gather = AsyncAllGather(3)

    def poll(self) -> None:
        """Raise StopRequested, or the error of a save, on all ranks together. All ranks call it at the same places."""
        row = [self.requests.code(), self.checkpointer.failed(), self.step_metrics.work_seconds]
        rows = self._gather.wait()
        self._gather.start(row)
        if rows is None:
            return
        if rows[:, 1].any():
            self.checkpointer.wait()
        code = int(rows[:, 0].max())
        if code:
            raise StopRequested(REASONS[code])
        if len(rows) > 1:
            self.step_metrics.add_ranks(rows[:, 2].tolist())

    def finish(self) -> None:
        """Wait for the gather in flight."""
        self._gather.wait()
