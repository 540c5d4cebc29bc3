"""The final scores of all runs beside baselines, trivial readers and chance: one column per task."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from stages.lib.report.comparison import LOWER_IS_BETTER, SIGNIFICANT, main_metric, shown
from stages.lib.report.references import BASELINE, beside, trivial
from stages.lib.report.scores import ScoreRow
from stages.lib.report_page.section import Cell
from stages.lib.scoring.tasks import local_tasks

COLUMNS = 6
"""Tasks with a column on the first screen: local tasks, then others by name."""

HIGHER, LOWER, REACHED = "\u2191", "\u2193", "\u25b2"
"""Arrows: which scores of a column are better, and a reference that is at least as good as the best run."""

Column = tuple[str, str]
"""(task, metric)"""


class ScoreTable:
    """The last scores of each run, by (task, metric) of the tasks' main metrics."""

    def __init__(self, rows: Sequence[ScoreRow], references: Sequence[ScoreRow]) -> None:
        self.references = references
        metrics: dict[str, list[str]] = {}
        for row in rows:
            metrics.setdefault(row["task"], []).append(row["metric"])
        self.columns = sorted(((task, main_metric(found)) for task, found in metrics.items()), key=_column_order)
        wanted = set(self.columns)
        known = [row for row in rows if (row["task"], row["metric"]) in wanted and row["value"] is not None]
        self.last = {(row["run"], row["task"], row["metric"]): row for row in known}  # sorted by step

    def titles(self, number: int = COLUMNS) -> list[str]:
        """Return the titles of the first columns: task, and the direction of better scores."""
        return [f"{task} {LOWER if metric in LOWER_IS_BETTER else HIGHER}" for task, metric in self._first(number)]

    def cells(self, run_name: str, number: int = COLUMNS) -> list[Cell | str]:
        """Return the first scores of a run; the best of each column is strong."""
        return [self._cell(run_name, column) for column in self._first(number)]

    def reference_rows(self, number: int = COLUMNS) -> Iterator[tuple[str, list[Cell | str]]]:
        """Yield (name, scores) of baselines, of the best trivial reader, and of chance."""
        found = {column: self._beside(column) for column in self._first(number)}
        names = dict.fromkeys(row["run"] for rows in found.values() for row in rows)
        for name in sorted(name for name in names if name.startswith(f"{BASELINE} ")):
            yield name, [self._reference(column, name, rows) for column, rows in found.items()]
        if any(trivial(rows) for rows in found.values()):
            yield "best rule without a model", [self._best_reader(column, rows) for column, rows in found.items()]
        chances = [self._chance(column) for column in found]
        if any(chances):
            yield "chance", [chance or "-" for chance in chances]

    def verdicts(self, number: int = COLUMNS) -> Iterator[str]:
        """Yield a sentence per column: the best run against the next. Their errors count as independent."""
        for column in self._first(number):
            ranked = self._ranked(column)
            if len(ranked) > 1:
                yield f"{column[0]}: {_verdict(ranked[0], ranked[1])}"

    def _first(self, number: int) -> list[Column]:
        return self.columns[:number]

    def _ranked(self, column: Column) -> list[ScoreRow]:
        rows = [row for key, row in self.last.items() if key[1:] == column]
        return sorted(rows, key=_badness)

    def _cell(self, run_name: str, column: Column) -> Cell | str:
        row, ranked = self.last.get((run_name, *column)), self._ranked(column)
        if row is None:
            return "-"
        return _score(row, strong=len(ranked) > 1 and row["value"] == ranked[0]["value"])

    def _beside(self, column: Column) -> list[ScoreRow]:
        return beside({"task": column[0], "metric": column[1]}, self.references)

    def _reference(self, column: Column, name: str, rows: Sequence[ScoreRow]) -> Cell | str:
        found = [row for row in rows if row["run"] == name]
        return _score(found[0], reaches=self._reaches(column, found[0])) if found else "-"

    def _best_reader(self, column: Column, rows: Sequence[ScoreRow]) -> Cell | str:
        readers = trivial(rows)
        if not readers:
            return "-"
        name = readers[0]["run"].partition(" ")[2]
        return _score(readers[0], name=name, reaches=self._reaches(column, readers[0]))

    def _reaches(self, column: Column, reference: ScoreRow) -> bool:
        ranked = self._ranked(column)
        return bool(ranked) and _badness(reference) <= _badness(ranked[0])

    def _chance(self, column: Column) -> str:
        local = local_tasks.find(column[0])
        return f"{local.chance:g}" if local and local.chance is not None and local.metric == column[1] else ""


def _column_order(column: Column) -> tuple[int, str]:
    local = local_tasks.find(column[0])
    return local_tasks.TASKS.index(local) if local else len(local_tasks.TASKS), column[0]


def _badness(row: ScoreRow) -> float:
    return row["value"] if row["metric"] in LOWER_IS_BETTER else -row["value"]


def _score(row: ScoreRow, strong: bool = False, name: str = "", reaches: bool = False) -> Cell:
    value, _, error = shown(row).partition(" +- ")
    note = " ".join(part for part in (f"\u00b1 {error}" if error else "", name) if part)
    title = "at least as good as the best run" if reaches else ""
    return Cell(text=value + f" {REACHED}" * reaches, note=note, strong=strong, title=title)


def _verdict(best: ScoreRow, next_best: ScoreRow) -> str:
    difference = abs(best["value"] - next_best["value"])
    names = f"{best['run']} is better than {next_best['run']} by {difference:.3f}"
    error = math.hypot(best["stderr"] or 0, next_best["stderr"] or 0)
    if None in (best["stderr"], next_best["stderr"]) or not error:
        return names
    errors = difference / error
    return f"{names}, {errors:.1f} standard errors{'' if errors >= SIGNIFICANT else ': not significant'}"
