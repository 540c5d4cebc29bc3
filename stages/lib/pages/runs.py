"""Runs side by side: the keys in which they differ, their final scores, means over seeds; of sweeps also heat maps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stages.lib.pages.charts import LOSS, loss_lines, training_chart
from stages.lib.pages.inputs import ReportInputs
from stages.lib.pages.scores import titled
from stages.lib.render import numbers, table
from stages.lib.render.page import Block, HeatCell, HeatMap, Section
from stages.lib.render.table import Cell, Table
from stages.lib.results import run_tables
from stages.lib.results.run_tables import Row, RunTable, Score, labels_of, value_text

CATEGORY = "Scores"
MAPS = 3  # tasks with a heat map
WIDEST = 28  # characters of a value; a longer one is cut
KINDS = {"pretrain": "pretrained", "finetune": "fine-tuned"}

KEYS, TASKS, ROWS = 6, 5, 30
"""Columns of keys and of tasks, and rows, that the summary shows."""


def lines_of(runs: RunTable, more: str) -> list[str]:
    """Return a table as lines of text, and its means over seeds before it. `more`: the file that has what is cut."""
    lines: list[str] = []
    kind = f"{len(runs.rows)} {KINDS.get(runs.stage, runs.stage)} runs"
    titles = {f"{kind} (+- standard error)": runs.rows}
    if runs.means:
        titles = {f"Means over seeds of {kind} (+- deviation)": runs.means} | titles
    for title, rows in titles.items():
        order = f", best {runs.columns[0].task} first, {table.BEST} the best of a column" if runs.columns else ""
        keys = [key for key in runs.keys if key in rows[0].values]
        cut = [f"{len(rows) - ROWS} runs"] * (len(rows) > ROWS)
        cut += [f"{len(runs.columns) - TASKS} tasks"] * (len(runs.columns) > TASKS)
        cut += [f"the keys {', '.join(keys[KEYS:])}"] * (len(keys) > KEYS)
        lines += [f"{title}{order}:", *_table(runs, rows, is_short=True).text()]
        lines += [f"  {more} also has {', '.join(cut)}"] * bool(cut) + [""]
    return lines


def _table(runs: RunTable, rows: Sequence[Row], caption: str = "", is_short: bool = False) -> Table:
    """Return rows of a table of runs, the best first. `is_short`: at most KEYS, TASKS and ROWS of them, as text."""
    keys, columns, ranked = [key for key in runs.keys if key in rows[0].values], runs.columns, runs.ranked(rows)
    if is_short:
        keys, columns, ranked = keys[:KEYS], columns[:TASKS], ranked[:ROWS]
    cells: list[list[str | Cell]] = []
    for row in ranked:
        several = f"and {len(row.runs) - 1} more" if len(row.runs) > 1 else ""
        scores = [row.scores.get(column.task) for column in columns]
        cells.append([
            Cell(text=row.runs[0], note=several, title=", ".join(row.runs)),
            *(value_text(row.values[key], WIDEST) for key in keys),
            *(table.score(score.value, score.error, strong=score.is_best) if score else numbers.UNKNOWN
              for score in scores),
        ])  # fmt: skip
    tasks = [column.task if is_short else titled(column.task, column.metric) for column in columns]
    titles = ["run", *labels_of(keys).values(), *tasks]
    return Table(titles=titles, rows=cells, caption=caption, numeric=range(1, len(titles)))


def section(inputs: ReportInputs) -> Section | None:
    """Return the section on several runs; None if there are no two that one stage trained."""
    blocks = [block for name, tables in inputs.sweeps.items() for block in _sweep(inputs, name, tables)]
    in_sweeps = [runs.rows for tables in inputs.sweeps.values() for runs in tables]
    for runs in inputs.tables:
        if runs.rows not in in_sweeps:
            blocks += _tables(runs, f"All {len(runs.rows)} {KINDS.get(runs.stage, runs.stage)} runs")
    return Section(category=CATEGORY, title="Side by side", blocks=blocks) if blocks else None


def _sweep(inputs: ReportInputs, name: str, tables: Sequence[RunTable]) -> Iterator[Block]:
    for runs in tables:
        yield from _tables(runs, f"Sweep {name}: {len(runs.rows)} {KINDS.get(runs.stage, runs.stage)} runs")
        for column in runs.columns[:MAPS]:
            if grid := run_tables.heat_map(runs, column.task):
                yield _heat_map(grid, name)
        names = {run for row in runs.rows for run in row.runs}
        lines = loss_lines({run: curves for run, curves in inputs.curves.items() if run in names})
        if lines:
            yield training_chart(inputs.curves, f"Loss of the runs of {name}", "nats per token", lines, LOSS)


def _tables(runs: RunTable, title: str) -> Iterator[Block]:
    if runs.means:
        yield _table(runs, runs.means, caption=f"{title}, means over seeds \u00b1 standard deviation.")
    order = f", best {runs.columns[0].task} first" if runs.columns else ""
    yield _table(runs, runs.rows, caption=f"{title}{order}: the keys in which they differ, and their last scores.")


def _heat_map(grid: run_tables.HeatMap, sweep: str) -> HeatMap:
    labels = labels_of([grid.x_key, grid.y_key])
    scores = [score for row in grid.scores for score in row if score is not None]
    worst, best = min(score.value for score in scores), max(score.value for score in scores)
    if grid.column.lower_is_better:
        worst, best = best, worst

    def cell(score: Score | None) -> HeatCell | None:
        if score is None:
            return None
        share = abs((score.value - worst) / (best - worst)) if best != worst else 1.0
        return HeatCell(text=numbers.score(score.value), share=share)

    means = " Means over seeds." if any(score.error is not None for score in scores) else ""
    title = titled(grid.column.task, grid.column.metric)
    return HeatMap(
        caption=f"{title} over the grid of the sweep {sweep}: the deeper the color, the better.{means}",
        x_label=labels[grid.x_key],
        y_label=labels[grid.y_key],
        x_values=[value_text(value) for value in grid.x_values],
        y_values=[value_text(value) for value in grid.y_values],
        rows=[[cell(score) for score in row] for row in grid.scores],
    )
