"""Scores over the items of a task that are not contaminated, from the per-sample logs of an evaluation.

A clean score is shown only if the same computation over all documents gives the score that the harness gave: a metric
that is no mean of its documents' values, such as F1 over a task, has none, nor has the score of a group of tasks.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from stages.lib.contamination import contaminated
from stages.lib.manifest import Manifest
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
    dirty, found = contaminated.doc_ids(made), {}
    for task, metrics in evaluation.identity["results"].items():
        rate = contaminated.rate_of(made, task)
        if rate is None:
            continue
        log = sample_logs.read(evaluation, evaluation.path.stem, task)
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
