"""The health of each run: jobs, restarts, skipped steps, rollbacks, hangs and spikes of the loss."""

from __future__ import annotations

from collections.abc import Iterator

from stages.lib.report.curves import Curves
from stages.lib.report.health import SPIKE, WINDOW
from stages.lib.report_page.inputs import PageInputs
from stages.lib.report_page.section import Block, Cell, Table

TITLES = ("run", "jobs", "restarts", "steps skipped", "rollbacks", "hangs", "loss spikes")
STEPS = 8  # spikes whose steps are named


def blocks(inputs: PageInputs) -> Iterator[Block]:
    """Yield the table of all runs."""
    rows = [[name, *_cells(curves)] for name, curves in inputs.curves.items()]
    caption = (
        "Health. A restart is a resume after a job that did not reach its milestone; a spike is a loss more than "
        f"{SPIKE:g} standard deviations above the mean of the {WINDOW} steps before it."
    )
    if rows:
        yield Table(titles=TITLES, rows=rows, caption=caption, numeric=range(1, len(TITLES)))


def _cells(curves: Curves) -> list[str | Cell]:
    health = curves.health
    counts = [health.jobs, len(health.restarts), *(health.counts.get(name, 0) for name in _COUNTS)]
    steps = ", ".join(f"{step:,}" for step in health.spikes[:STEPS]) + ", ..." * (len(health.spikes) > STEPS)
    return [*(f"{count:,}" for count in counts), Cell(text=f"{len(health.spikes):,}", note=steps and f"at {steps}")]


_COUNTS = ("step skipped", "rollback", "hang")
