"""The table of scores: one row per run, step, task and metric."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from stages.lib import files
from stages.lib.report.clean_scores import clean_scores
from stages.lib.report.results import Results

COLUMNS = (
    *("run", "step", "tokens", "task", "metric", "value", "stderr", "n"),
    *("contaminated", "clean", "clean_stderr", "clean_n"),
)
"""`contaminated`: share of the task's items that stand in the training text; `clean`: the score over the others."""

ScoreRow = dict[str, Any]
"""A row of the table: a mapping with keys of COLUMNS, all of them up to `stderr`."""


def score_rows(results: Results) -> list[ScoreRow]:
    """Return all scores, sorted. A task that is in several suites is named SUITE/TASK."""
    tasks: Counter[tuple[str, int, str]] = Counter()
    for (run_name, step, _), evaluation in results.evaluations.items():
        tasks.update((run_name, step, task) for task in evaluation.identity["results"])
    rows = []
    for (run_name, step, suite), evaluation in results.evaluations.items():
        clean = clean_scores(evaluation, results.contamination_of(evaluation))
        for task, metrics in evaluation.identity["results"].items():
            name = task if tasks[run_name, step, task] == 1 else f"{suite}/{task}"
            at = {"run": run_name, "step": step, "tokens": evaluation.identity["tokens"], "task": name}
            rows += [
                {**at, "metric": metric, **score, **clean.get((task, metric), {})} for metric, score in metrics.items()
            ]
    return sorted(rows, key=_row_order)


def _row_order(row: ScoreRow) -> tuple[str, int, str, str]:
    return row["run"], row["step"], row["task"], row["metric"]


def write_scores(path: Path, rows: Iterable[ScoreRow], more: Sequence[str] = ()) -> None:
    """Write the table as CSV; an unknown value is empty. `more`: keys of the rows that are further columns."""
    with files.atomic(path, "w") as file:
        files.write_csv(file, (*COLUMNS, *more), rows)
