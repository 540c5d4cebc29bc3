"""A comparison as CSV: one row per difference, and one per score of each milestone of the runs."""

from __future__ import annotations

import io
from typing import Any

from stages.lib import files
from tools.compare.comparison_report import ComparisonReport, Pair
from tools.compare.score_curves import CurvePoint
from tools.compare.scores import TaskDifference

COLUMNS = (
    *("kind", "suite", "task", "metric", "run", "step", "tokens", "value", "stderr", "n"),
    *("reference", "reference_value", "reference_stderr", "difference", "low", "high", "p", "p_holm", "paired"),
    "verdict",
)
"""kind is difference or score. n is the number of documents: of a difference, those that both models were scored on."""


def text(report: ComparisonReport) -> str:
    """Return the whole file; an unknown value is empty."""
    file = io.StringIO()
    differences = [_difference(pair, row) for pair in report.pairs for row in pair.rows]
    files.write_csv(file, COLUMNS, [*differences, *map(_score, report.points)])
    return file.getvalue()


def _difference(pair: Pair, row: TaskDifference) -> dict[str, Any]:
    found = row.difference
    cells = {
        "kind": "difference",
        **{"suite": row.suite, "task": row.task, "metric": row.metric},
        **{"run": pair.other.run, "step": pair.other.step, "tokens": pair.other.tokens},
        **{"value": row.other.value, "stderr": row.other.stderr, "n": row.n},
        **{"reference": pair.reference.name, "reference_value": row.reference.value},
        "reference_stderr": row.reference.stderr,
        "verdict": row.verdict,
    }
    if found is not None:
        cells |= {"difference": found.value, "low": found.low, "high": found.high, "p": found.p}
        cells |= {"p_holm": row.corrected_p, "paired": str(row.n is not None).lower()}
    return cells


def _score(point: CurvePoint) -> dict[str, Any]:
    return {
        "kind": "score",
        **{"suite": point.suite, "task": point.task, "metric": point.metric, "run": point.run, "step": point.step},
        **{"tokens": point.tokens, "value": point.value, "stderr": point.stderr, "n": point.n},
    }
