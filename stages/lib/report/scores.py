"""The table of scores: one row per run, step, task and metric."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stages.lib import files
from stages.lib.contamination import rules
from stages.lib.manifest import Manifest
from stages.lib.report.results import Results
from stages.lib.scoring import sample_logs
from stages.lib.scoring.aggregations import document_scores
from stages.lib.scoring.sample_logs import SampleLog

TOLERANCE = 1e-6
"""Relative difference of sums in another order."""


def clean_scores(evaluation: Manifest, made: Manifest | None) -> dict[tuple[str, str], dict[str, Any]]:
    """Return {(task, metric): {"contaminated", "clean", "clean_stderr", "clean_n"}} for tasks with items.

    `made`: the contamination of the evaluation's corpus by its suite. The last three are missing without a clean score.
    """
    if made is None:
        return {}
    dirty, found = rules.doc_ids(made), {}
    for task, metrics in evaluation.identity["results"].items():
        rate = rules.rate_of(made, task)
        if rate is None:
            continue
        log = sample_logs.read_logs(evaluation, evaluation.path.stem, task)
        for metric, score in metrics.items():
            found[task, metric] = {"contaminated": rate, **_clean(metric, score["value"], log, dirty[task])}
    return found


def _clean(metric: str, value: float | None, log: SampleLog | None, dirty: Collection[int]) -> Mapping[str, Any]:
    values = {number: found for (_, number), (_, found) in log.values(metric).items()} if log else {}
    again = document_scores(metric, list(values.values()))
    if value is None or again is None or not math.isclose(again.score(), value, rel_tol=TOLERANCE, abs_tol=1e-12):
        return {}
    kept = document_scores(metric, [found for number, found in values.items() if number not in dirty])
    if kept is None:
        return {"clean": None, "clean_stderr": None, "clean_n": 0}
    return {"clean": kept.score(), "clean_stderr": kept.standard_error(), "clean_n": len(kept.columns)}


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
