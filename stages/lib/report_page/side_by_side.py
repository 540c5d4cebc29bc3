"""Runs side by side: the keys in which they differ, their final scores, means over seeds; of sweeps also heat maps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from stages.lib.report import run_table
from stages.lib.report.run_table import Column, Row, RunTable, Score
from stages.lib.report.run_table_text import WORDS, labels_of, value_text
from stages.lib.report.summary_figures import loss_lines
from stages.lib.report_page.inputs import PageInputs
from stages.lib.report_page.score_table import HIGHER, LOWER
from stages.lib.report_page.section import Block, Cell, HeatCell, HeatMap, Section, Table
from stages.lib.report_page.training import LOSS, line_chart

CATEGORY = "Scores"
MAPS = 3  # tasks with a heat map


def section(inputs: PageInputs) -> Section | None:
    """Return the section on several runs; None if there are no two that one stage trained."""
    blocks = [block for name, tables in inputs.sweeps.items() for block in _sweep(inputs, name, tables)]
    in_sweeps = [table.rows for tables in inputs.sweeps.values() for table in tables]
    for table in inputs.tables:
        if table.rows not in in_sweeps:
            blocks += _tables(table, f"All {len(table.rows)} {WORDS.get(table.stage, table.stage)} runs")
    return Section(category=CATEGORY, title="Side by side", blocks=blocks) if blocks else None


def _sweep(inputs: PageInputs, name: str, tables: Sequence[RunTable]) -> Iterator[Block]:
    for table in tables:
        title = f"Sweep {name}: {len(table.rows)} {WORDS.get(table.stage, table.stage)} runs"
        yield from _tables(table, title)
        for column in table.columns[:MAPS]:
            if found := run_table.heat_map(table, column.task):
                yield _heat_map(found, name)
        runs = {run for row in table.rows for run in row.runs}
        lines = loss_lines({run: curves for run, curves in inputs.curves.items() if run in runs})
        if lines:
            yield line_chart(inputs, f"Loss of the runs of {name}", "nats per token", lines, LOSS)


def _tables(table: RunTable, title: str) -> Iterator[Block]:
    if table.means:
        yield _table(table, table.means, f"{title}, means over seeds \u00b1 standard deviation.")
    order = f", best {table.columns[0].task} first" if table.columns else ""
    yield _table(table, table.rows, f"{title}{order}: the keys in which they differ, and their last scores.")


def _table(table: RunTable, rows: Sequence[Row], caption: str) -> Table:
    keys = [key for key in table.keys if key in rows[0].values]
    labels = labels_of(keys)
    titles = ["run", *(labels[key] for key in keys), *map(_title, table.columns)]
    cells = [_cells(row, keys, table.columns) for row in table.ranked(rows)]
    return Table(titles=titles, rows=cells, caption=caption, numeric=range(1, len(titles)))


def _title(column: Column) -> str:
    return f"{column.task} {LOWER if column.lower_is_better else HIGHER}"


def _cells(row: Row, keys: Sequence[str], columns: Sequence[Column]) -> list[str | Cell]:
    several = f"{len(row.runs)} runs" if len(row.runs) > 1 else ""
    name = Cell(text=row.runs[0], note=several, title=", ".join(row.runs))
    return [name, *(value_text(row.values[key]) for key in keys), *(_score(row.scores.get(c.task)) for c in columns)]


def _score(score: Score | None) -> str | Cell:
    if score is None:
        return "-"
    note = "" if score.error is None else f"\u00b1 {score.error:.3f}"
    return Cell(text=f"{score.value:.3f}", note=note, strong=score.is_best)


def _heat_map(found: run_table.HeatMap, sweep: str) -> HeatMap:
    labels = labels_of([found.x_key, found.y_key])
    scores = [score for row in found.scores for score in row if score is not None]
    worst, best = (pick(score.value for score in scores) for pick in _worst_and_best(found.column))
    means = " Means over seeds." if any(score.error is not None for score in scores) else ""
    return HeatMap(
        caption=f"{_title(found.column)} over the grid of the sweep {sweep}: the deeper the color, the better.{means}",
        x_label=labels[found.x_key],
        y_label=labels[found.y_key],
        x_values=[value_text(value) for value in found.x_values],
        y_values=[value_text(value) for value in found.y_values],
        rows=[[_heat_cell(score, worst, best) for score in row] for row in found.scores],
    )


def _worst_and_best(column: Column) -> tuple[Callable[[Iterable[float]], float], ...]:
    return (max, min) if column.lower_is_better else (min, max)


def _heat_cell(score: Score | None, worst: float, best: float) -> HeatCell | None:
    if score is None:
        return None
    return HeatCell(
        text=f"{score.value:.3f}", share=abs((score.value - worst) / (best - worst)) if best != worst else 1.0
    )
