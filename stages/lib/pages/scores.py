"""Scores: the last ones of all runs beside baselines and chance, before and after tuning, contamination, all rows.

And runs side by side: the keys in which they differ, means over seeds, and heat maps of sweeps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from stages.lib import files
from stages.lib.errors import UserError
from stages.lib.pages.inputs import LOSS, ReportInputs, loss_lines, training_chart
from stages.lib.render import numbers, table
from stages.lib.render.page import Block, HeatCell, HeatMap, Section, Texts
from stages.lib.render.table import Cell, Table
from stages.lib.results import run_tables
from stages.lib.results.differences import Differences, TaskDifference, key_of
from stages.lib.results.manifests import Results
from stages.lib.results.run_tables import Row, RunTable, Score, labels_of, value_text
from stages.lib.results.scores import (
    COLUMNS,
    EXCHANGED,
    TRIVIAL,
    ScoreRow,
    badness,
    beside,
    columns_of,
    label_of,
    lower_is_better,
    trivial,
)
from stages.lib.scoring.aggregations import BITS_OF_ANSWER
from stages.lib.scoring.inputs import PARITY
from stages.lib.scoring.tasks import local_tasks

CATEGORY = "Scores"
FIRST = 6
"""Tasks with a column on the first screen: local tasks, then others by name."""

HIGHER, LOWER, REACHED = "\u2191", "\u2193", "\u25b2"
"""Arrows: which scores of a column are better, and a reference that is at least as good as the best run."""

BITS = f"{BITS_OF_ANSWER}: bits per byte of the right answer."

TUNED = 8  # runs that are compared with the model before: the per-sample logs of each pair take seconds to read
TEXTS = 3  # of each run
ROWS = 2000  # rows of the whole table on the page: 40,000 would make it slow

Column = tuple[str, str]
"""(task, metric)"""


def titled(task: str, metric: str) -> str:
    """Return the label of a task's metric with the direction of better scores."""
    return f"{label_of(task, metric)} {LOWER if lower_is_better(metric) else HIGHER}"


class ScoreTable:
    """The last scores of each run, by (task, metric): of a task, the metrics that tables show.

    `number`: of columns, local tasks first, then the others by name; default: all.
    """

    def __init__(self, rows: Sequence[ScoreRow], references: Sequence[ScoreRow], number: int | None = None) -> None:
        every = columns_of(rows)
        self.columns, self.further = every[:number], len(every[number:]) if number is not None else 0
        self.last: dict[Column, dict[str, ScoreRow]] = {column: {} for column in self.columns}
        for row in rows:  # sorted by step
            if (row["task"], row["metric"]) in self.last and row["value"] is not None:
                self.last[row["task"], row["metric"]][row["run"]] = row
        self.ranked = {column: sorted(of_run.values(), key=badness) for column, of_run in self.last.items()}
        self.beside = {(task, metric): beside({"task": task, "metric": metric}, references)
                       for task, metric in self.columns}  # fmt: skip

    def titles(self) -> list[str]:
        """Return the titles of the columns: task, and the direction of better scores."""
        return [titled(*column) for column in self.columns]

    def cells(self, run_name: str) -> list[Cell | str]:
        """Return the scores of a run; the best of each column is strong."""
        cells: list[Cell | str] = []
        for column, of_run in self.last.items():
            row, ranked = of_run.get(run_name), self.ranked[column]
            is_best = row is not None and len(ranked) > 1 and row["value"] == ranked[0]["value"]
            cells.append(table.score(row["value"], row["stderr"], strong=is_best) if row else numbers.UNKNOWN)
        return cells

    def reference_rows(self) -> Iterator[tuple[str, list[Cell | str]]]:
        """Yield (name, scores) of baselines, runs with exchanged contexts, the best trivial baseline, and chance."""
        names = {row["run"] for rows in self.beside.values() for row in rows}
        for name in sorted(name for name in names if not name.startswith(f"{TRIVIAL} ")):
            found = {column: [row for row in rows if row["run"] == name] for column, rows in self.beside.items()}
            kind, _, run_name = name.partition(" ")
            title = f"{run_name}, contexts exchanged" if kind == EXCHANGED else name
            yield title, [self._reference(column, rows) for column, rows in found.items()]
        readers = {column: trivial(rows) for column, rows in self.beside.items()}
        if any(readers.values()):
            yield "best trivial baseline", [self._reference(column, rows, True) for column, rows in readers.items()]
        chances = [local_tasks.chance_of(*column) for column in self.columns]
        if any(chance is not None for chance in chances):
            yield "chance", [numbers.UNKNOWN if chance is None else f"{chance:g}" for chance in chances]

    def verdicts(self, differences: Differences) -> Iterator[str]:
        """Yield a sentence per column: the best run against the next."""
        for column, ranked in self.ranked.items():
            if len(ranked) > 1 and (difference := differences.between(ranked[1], ranked[0])):
                yield f"{label_of(*column)}: {difference.sentence(ranked[1]['run'], ranked[0]['run'])}"

    def _reference(self, column: Column, rows: Sequence[ScoreRow], with_name: bool = False) -> Cell | str:
        """Return the first of the rows, marked if it is at least as good as the best run."""
        if not rows:
            return numbers.UNKNOWN
        row, ranked = rows[0], self.ranked[column]
        cell = table.score(row["value"], row["stderr"], name=row["run"].partition(" ")[2] if with_name else "")
        if not ranked or badness(row) > badness(ranked[0]):
            return cell
        return Cell(text=f"{cell.text} {REACHED}", note=cell.note, title="at least as good as the best run")


def section(inputs: ReportInputs) -> Section | None:
    """Return the section on the scores; None without a score."""
    if not inputs.rows:
        return None
    blocks: list[Block] = [chart for name, chart in inputs.charts.items() if name != "loss"]
    blocks += [_all_tasks(inputs), _tuning(inputs), _contamination(inputs), _texts(inputs), _all_rows(inputs)]
    return Section.of(CATEGORY, "Scores", blocks)


def _all_tasks(inputs: ReportInputs) -> Table:
    """The scores of all tasks, one row each: a table of hundreds of tasks is read downward."""
    scores = ScoreTable(inputs.last_rows, inputs.references)
    columns = [(name, scores.cells(name)) for name in inputs.results.runs()]
    columns += scores.reference_rows()
    titles = ["task", "metric", *(name for name, _ in columns)]
    rows = [
        [title, scores.columns[at][1], *(cells[at] for _, cells in columns)] for at, title in enumerate(scores.titles())
    ]
    caption = f"The last scores of each run, beside baselines. {BITS} {inputs.on_averages()}".strip()
    return Table(titles=titles, rows=rows, caption=caption, numeric=range(2, len(titles)))


def tuning(
    results: Results, rows: Sequence[ScoreRow], differences: Differences
) -> dict[str, list[tuple[TaskDifference, list[ScoreRow]]]]:
    """Return what is compared of the first TUNED tuned runs: differences from the model before, at the run's last step.

    Each with the rows of the model before, and of all milestones of the run.
    """
    found: dict[str, list[tuple[TaskDifference, list[ScoreRow]]]] = {}
    for run_name in results.runs():
        origin = results.tuned_from(run_name) if len(found) < TUNED else None
        scored = [(name, step) for name, step, _ in results.evaluations if name == run_name]  # sorted by step
        if origin is None or not scored:
            continue
        of_both = [row for row in rows if (row["run"], row["step"]) == origin or row["run"] == run_name]
        of_both.sort(key=lambda row: ((row["run"], row["step"]) != origin, row["step"]))
        pairs = [difference for difference in differences.of(origin, scored[-1]) if difference.value is not None]
        found[run_name] = [
            (difference, [row for row in of_both if key_of(row) == difference.key and row["value"] is not None])
            for difference in pairs
        ]
    return found


def _tuning(inputs: ReportInputs) -> Table:
    rows: list[list[str | Cell]] = []
    for run_name, compared in tuning(inputs.results, inputs.last_rows, inputs.differences).items():
        before, _ = inputs.results.tuned_from(run_name) or ("", 0)
        for difference, _ in compared:
            scores = [table.score(row["value"], row["stderr"]) for row in (difference.reference, difference.other)]
            rows.append([run_name, difference.label, *scores, difference.sentence(before, run_name)])
    titles = ["run", "task", "before tuning", "after", "difference"]
    more = sum(inputs.results.tuned_from(name) is not None for name in inputs.results.runs()) - TUNED
    caption = "Tuned runs beside the models that they were tuned from."
    caption += f" {more} further ones can be compared by tools.compare." if more > 0 else ""
    return Table(titles=titles, rows=rows, caption=caption)


def contaminated(rows: Sequence[ScoreRow]) -> list[ScoreRow]:
    """Return the last scores of each run whose items were looked for in training text, the highest rates first."""
    known = [row for row in rows if row.get("contaminated") is not None]
    last = {(row["run"], row["task"], row["metric"]): row for row in known}  # rows are sorted by step
    return sorted(last.values(), key=lambda row: (-row["contaminated"], row["task"]))


def _contamination(inputs: ReportInputs) -> Table:
    rows: list[list[str | Cell]] = []
    for row in contaminated(inputs.last_rows):
        clean = row.get("clean") is not None
        scores = [table.score(row["value"], row["stderr"]), table.score(row.get("clean"), row.get("clean_stderr"))]
        left = f"{row['clean_n']:,}" if clean else numbers.UNKNOWN
        rows.append([row["run"], row["task"], row["metric"], f"{row['contaminated']:.1%}", *scores, left])
    titles = ["run", "task", "metric", "contaminated", "score", "without them", "items left"]
    caption = "Items of tasks that stand in the training text, and the score over the others."
    return Table(titles=titles, rows=rows, caption=caption, numeric=range(-4, 0))


def _all_rows(inputs: ReportInputs) -> Table:
    rows = [*inputs.rows, *inputs.references]
    shown = rows[:ROWS]
    titles = [name for name in COLUMNS if any(row.get(name) is not None for row in shown)]
    more = f" The first {ROWS:,} of {len(rows):,} rows; scores.csv has all." if len(rows) > ROWS else ""
    return Table(
        titles=titles,
        rows=[[_plain(row.get(name)) for name in titles] for row in shown],
        caption=f"scores.csv: every run at every milestone; then baselines, the trivial ones without a model.{more}",
        numeric=range(titles.index("value"), len(titles)),
        saved_as="shown_scores.csv",
    )


def _plain(value: str | float | None) -> Cell | str:
    if value is None or isinstance(value, str):
        return value or ""
    return Cell(text=f"{value:,}" if isinstance(value, int) else f"{value:.4g}", value=value)


def _texts(inputs: ReportInputs) -> Texts:
    """Return texts that the newest export of each run wrote, as its parity check stored them."""
    rows = []
    for run_name, export in inputs.results.last_exports().items():
        path = export.directory / PARITY
        try:
            greedy = files.read_json_object(path).get("greedy") if path.exists() else None
        except UserError:
            greedy = None
        texts = greedy.get("continuations") if isinstance(greedy, Mapping) else None
        for text in texts[:TEXTS] if isinstance(texts, list) else ():
            if isinstance(text, dict) and {"prompt", "text"} <= text.keys():
                step = export.identity["step"]
                rows.append((f"{run_name}, step {step:,}", str(text["prompt"]), str(text["text"])))
    return Texts(
        rows=rows,
        caption="What the newest export of each run writes after the beginning of validation text, greedily: the "
        "likeliest token each time. The parity check stored it; larger models are compared block by block, and "
        "write nothing there.",
    )


MAPS = 3  # tasks with a heat map
WIDEST = 28  # characters of a value; a longer one is cut
KINDS = {"pretrain": "pretrained", "finetune": "fine-tuned"}

KEYS, TASKS, LINES = 6, 5, 30
"""Columns of keys and of tasks, and rows, that the summary shows."""


def lines_of(runs: RunTable, more: str) -> list[str]:
    """Return a table as lines of text, and its means over seeds before it. `more`: the file that has what is cut."""
    lines: list[str] = []
    kind = f"{len(runs.rows)} {KINDS.get(runs.stage, runs.stage)} runs"
    titles = {f"{kind} (+- standard error)": runs.rows}
    if runs.means:
        means = f"Means over seeds of {kind} (+- deviation over seeds; error over documents)"
        titles = {means: runs.means} | titles
    for title, rows in titles.items():
        order = f", best {runs.columns[0].task} first, {table.BEST} the best of a column" if runs.columns else ""
        keys = [key for key in runs.keys if key in rows[0].values]
        cut = [f"{len(rows) - LINES} runs"] * (len(rows) > LINES)
        cut += [f"{len(runs.columns) - TASKS} tasks"] * (len(runs.columns) > TASKS)
        cut += [f"the keys {', '.join(keys[KEYS:])}"] * (len(keys) > KEYS)
        lines += [f"{title}{order}:", *_runs_table(runs, rows, is_short=True).text()]
        lines += [f"  {more} also has {', '.join(cut)}"] * bool(cut) + [""]
    return lines


def _runs_table(runs: RunTable, rows: Sequence[Row], caption: str = "", is_short: bool = False) -> Table:
    """Return rows of a table of runs, the best first. `is_short`: at most KEYS, TASKS and ROWS of them, as text."""
    keys, columns, ranked = [key for key in runs.keys if key in rows[0].values], runs.columns, runs.ranked(rows)
    if is_short:
        keys, columns, ranked = keys[:KEYS], columns[:TASKS], ranked[:LINES]
    cells: list[list[str | Cell]] = []
    for row in ranked:
        several = f"and {len(row.runs) - 1} more" if len(row.runs) > 1 else ""
        scores = [row.scores.get(column) for column in columns]
        cells.append([
            Cell(text=row.runs[0], note=several, title=", ".join(row.runs)),
            *(value_text(row.values[key], WIDEST) for key in keys),
            *(numbers.UNKNOWN if score is None else _cell(score) for score in scores),
        ])  # fmt: skip
    tasks = [label_of(*column) if is_short else titled(*column) for column in columns]
    titles = ["run", *labels_of(keys).values(), *tasks]
    return Table(titles=titles, rows=cells, caption=caption, numeric=range(1, len(titles)))


def _cell(score: Score) -> Cell:
    name = "" if score.documents_error is None else f"({score.documents_error:.3f})"
    return table.score(score.value, score.error, name, strong=score.is_best)


def side_by_side(inputs: ReportInputs) -> Section | None:
    """Return the section on several runs; None if there are no two that one stage trained."""
    blocks = [block for name, tables in inputs.sweeps.items() for block in _sweep(inputs, name, tables)]
    in_sweeps = [runs.rows for tables in inputs.sweeps.values() for runs in tables]
    for runs in inputs.tables:
        if runs.rows not in in_sweeps:
            blocks += _runs_tables(inputs, runs, f"All {len(runs.rows)} {KINDS.get(runs.stage, runs.stage)} runs")
    return Section.of(CATEGORY, "Side by side", blocks)


def _sweep(inputs: ReportInputs, name: str, tables: Sequence[RunTable]) -> Iterator[Block]:
    for runs in tables:
        yield from _runs_tables(
            inputs, runs, f"Sweep {name}: {len(runs.rows)} {KINDS.get(runs.stage, runs.stage)} runs"
        )
        for column in runs.columns[:MAPS]:
            if grid := run_tables.heat_map(runs, column):
                yield _heat_map(grid, name)
        names = {run for row in runs.rows for run in row.runs}
        lines = loss_lines({run: curves for run, curves in inputs.curves.items() if run in names})
        yield training_chart(inputs.curves, f"Loss of the runs of {name}", "nats per token", lines, LOSS)


def _runs_tables(inputs: ReportInputs, runs: RunTable, title: str) -> Iterator[Block]:
    averages = inputs.on_averages({name for row in runs.rows for name in row.runs})
    if runs.means:
        caption = "means over seeds \u00b1 standard deviation over seeds, in brackets the standard error over documents"
        yield _runs_table(runs, runs.means, caption=f"{title}, {caption}. {averages}".strip())
    order = f", best {runs.columns[0].task} first" if runs.columns else ""
    caption = f"{title}{order}: the keys in which they differ, and their last scores. {averages}".strip()
    yield _runs_table(runs, runs.rows, caption=caption)


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
    title = titled(*grid.column)
    return HeatMap(
        caption=f"{title} over the grid of the sweep {sweep}: the deeper the color, the better.{means}",
        x_label=labels[grid.x_key],
        y_label=labels[grid.y_key],
        x_values=[value_text(value) for value in grid.x_values],
        y_values=[value_text(value) for value in grid.y_values],
        rows=[[cell(score) for score in row] for row in grid.scores],
    )
