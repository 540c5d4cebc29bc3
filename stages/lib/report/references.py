"""Scores to compare a run's with: those of baselines, and of trivial readers, which use no model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from stages.lib.report.comparison import LOWER_IS_BETTER
from stages.lib.report.results import Results
from stages.lib.report.scores import ScoreRow
from stages.lib.scoring.tasks import local_tasks

BASELINE, TRIVIAL = "baseline", "trivial"
"""The first word of a reference's name, which stands in the column `run` of the table."""


def reference_rows(results: Results) -> list[ScoreRow]:
    """Return the scores of baselines (`baseline NAME`) and trivial readers (`trivial READER`), without step and tokens.

    A reference has one row per corpus and metric: its `corpus` is that of the scores beside it.
    """
    rows: dict[tuple[str, ...], ScoreRow] = {}
    for (name, _, suite), scores in results.baselines.items():
        corpus = scores.identity.get("corpus", "")
        for task, metrics in scores.identity["results"].items():
            for metric, score in metrics.items():
                _add(rows, f"{BASELINE} {name}", suite, task, metric, corpus, score)
    for (_, _, suite), scores in results.evaluations.items():
        corpus = scores.identity.get("corpus", "")
        for task, readers in scores.identity.get("trivial", {}).items():
            for reader, score in readers.items():
                _add(rows, f"{TRIVIAL} {reader}", suite, task, _metric_of(task), corpus, score)
    suites: dict[str, set[str]] = {}
    for row in rows.values():
        suites.setdefault(row["task"], set()).add(row["suite"])
    return [_named(row, len(suites[row["task"]]) > 1) for _, row in sorted(rows.items())]


def _metric_of(task: str) -> str:
    local_task = local_tasks.find(task)
    return local_task.metric if local_task else ""


def _add(
    rows: dict[tuple[str, ...], ScoreRow], name: str, suite: str, task: str, metric: str, corpus: str, score: Any
) -> None:
    row = {"run": name, "step": None, "tokens": None, "suite": suite, "corpus": corpus, "task": task, "metric": metric}
    rows[name, suite, task, metric, corpus] = row | score


def _named(row: ScoreRow, of_several_suites: bool) -> ScoreRow:
    """Return a row with the name of its task in the table of scores, where a task of several suites has theirs."""
    name = f"{row['suite']}/{row['task']}" if of_several_suites else row["task"]
    return {key: value for key, value in row.items() if key != "suite"} | {"task": name}


def beside(row: ScoreRow, references: Iterable[ScoreRow]) -> list[ScoreRow]:
    """Return the references of a score's task and metric, best first."""
    found = [other for other in references if all(other[key] == row[key] for key in ("task", "metric"))]
    found = [other for other in found if other["value"] is not None]
    sign = 1 if row["metric"] in LOWER_IS_BETTER else -1
    return sorted(found, key=lambda other: sign * other["value"])


def trivial(references: Sequence[ScoreRow]) -> list[ScoreRow]:
    """Return the rows of trivial readers."""
    return [row for row in references if row["run"].startswith(f"{TRIVIAL} ")]


def reached(row: ScoreRow, reader: ScoreRow) -> bool:
    """Return True if a trivial reader's score is as good as a model's."""
    better = reader["value"] - row["value"]
    return (-better if row["metric"] in LOWER_IS_BETTER else better) >= 0


def readers_sentence(row: ScoreRow, references: Sequence[ScoreRow]) -> list[str]:
    """Return a line on what trivial readers reach beside a model's score; none without them."""
    readers = beside(row, trivial(references))
    if not readers:
        return []
    names = [f"{reader['run'].partition(' ')[2]} {reader['value']:.3f}" for reader in readers]
    if at_least := [name for name, reader in zip(names, readers, strict=True) if reached(row, reader)]:
        return [f"    rules without a model reach as much: {', '.join(at_least)}"]
    return [f"    the best rule without a model reaches less: {names[0]}"]
