"""The health of a training: jobs, restarts, skipped steps, rollbacks, hangs, spikes of the loss."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stages.lib.run_directory import history

WINDOW = 100
"""Steps before a step that its loss is compared with."""

SPIKE = 6.0
"""Standard deviations above the mean of these steps from which on a loss is a spike."""


@dataclass(frozen=True, kw_only=True)
class Health:
    """`jobs`: attempts at the run; `restarts`, `rollbacks`: tokens at which they were; `spikes`: their steps.

    A restart is a resume after an attempt that did not reach its milestone. `counts`: as of `history.trouble_counts`.
    """

    jobs: int = 0
    restarts: tuple[float, ...] = ()
    rollbacks: tuple[float, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    spikes: tuple[int, ...] = ()


def health_of(events: Sequence[dict[str, Any]], tokens: Mapping[int, float | None], spikes: Sequence[int]) -> Health:
    """Return the health of a run. `tokens`: {step: tokens at it}."""
    kept = {event["step"] for event in events if event["event"] == "rollback"}
    return Health(
        jobs=sum(event["event"] == "attempt" for event in events),
        restarts=_at(_restarts(events), tokens),
        rollbacks=_at(sorted(kept), tokens),
        counts=history.trouble_counts(events),
        spikes=tuple(spikes),
    )


def _restarts(events: Sequence[dict[str, Any]]) -> list[int]:
    """The steps from which attempts resumed that were not stopped by reaching a milestone."""
    steps, finished = [], True
    for event in events:
        if event["event"] == "resume" and not finished:
            steps.append(event["step"])
        if event["event"] in ("start", "resume", "finish"):
            finished = event["event"] == "finish"
    return steps


def _at(steps: Sequence[int], tokens: Mapping[int, float | None]) -> tuple[float, ...]:
    return tuple(tokens.get(step) or 0.0 for step in steps)


class Spikes:
    """Finds spikes of the loss among steps that are added in order."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self._window: deque[float] = deque()
        self._sum = self._squares = 0.0

    def add(self, step: int, loss: float) -> None:
        """Add a step. A loss counts once WINDOW steps are known."""
        if len(self._window) == WINDOW:
            mean = self._sum / WINDOW
            deviation = math.sqrt(max(self._squares / WINDOW - mean * mean, 0.0))
            if loss > mean + SPIKE * deviation and loss > 1.01 * mean:  # a constant loss has no deviation
                self.steps.append(step)
            first = self._window.popleft()
            self._sum, self._squares = self._sum - first, self._squares - first * first
        self._window.append(loss)
        self._sum, self._squares = self._sum + loss, self._squares + loss * loss
