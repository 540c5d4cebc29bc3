"""Scores over the items of a task that are not contaminated, from the per-sample logs of an evaluation.

A clean score is shown only if the same computation over all documents gives the score that the harness gave: a metric
that is no mean of its documents' values, such as F1 over a task, has none, nor has the score of a group of tasks.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from stages.lib.contamination import contaminated
from stages.lib.contamination.items import read_lines
from stages.lib.manifest import Manifest

TOLERANCE = 1e-6
"""Relative difference of sums in another order."""

Score = tuple[float, float | None]
"""Value and standard error."""

Values = dict[tuple[str, int], Any]
"""{(metric, number of the document): its value}; the value of a rolling task is (log-likelihood, weight)."""


def mean(values: Sequence[float]) -> Score:
    """Return the mean, with the standard error of lm-evaluation-harness."""
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return statistics.fmean(values), error


def nats_per_weight(pairs: Sequence[Sequence[float]]) -> Score:
    """Return -sum(log-likelihoods) / sum(weights); the standard error of a ratio by the delta method."""
    weight = math.fsum(pair[1] for pair in pairs)
    ratio = -math.fsum(pair[0] for pair in pairs) / weight
    if len(pairs) < 2:
        return ratio, None
    squares = math.fsum((pair[0] + ratio * pair[1]) ** 2 for pair in pairs)
    return ratio, math.sqrt(squares * len(pairs) / (len(pairs) - 1)) / weight


def _bits(nats: Score) -> Score:
    return nats[0] / math.log(2), None if nats[1] is None else nats[1] / math.log(2)


def _perplexity(nats: Score) -> Score:
    value = math.exp(nats[0])
    return value, None if nats[1] is None else value * nats[1]


OF_PAIRS: dict[str, Callable[[Score], Score]] = {
    "bits_per_byte": _bits,
    "byte_perplexity": _perplexity,
    "word_perplexity": _perplexity,
}
"""{metric of a rolling task: function of its nats per weight}"""


def aggregated(metric: str, values: Sequence[Any]) -> Score | None:
    """Return the score over documents with these values; None if it is not known how the metric is made of them."""
    try:
        if all(isinstance(value, (int, float)) for value in values):
            return mean(values)
        if metric in OF_PAIRS:
            return OF_PAIRS[metric](nats_per_weight(values))
    except (ArithmeticError, TypeError, ValueError, IndexError):
        pass
    return None


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
        values = _values_of(evaluation, task)
        for metric, score in metrics.items():
            clean = _clean(metric, score["value"], values, dirty[task])
            found[task, metric] = {"contaminated": rate, **clean}
    return found


def _values_of(evaluation: Manifest, task: str) -> Values:
    name = f"{evaluation.path.stem}/samples/{task}.jsonl.gz"
    if name not in evaluation.identity["outputs"]:
        return {}
    values: Values = {}
    for sample in read_lines(evaluation.output(name)):
        for metric, value in sample["metrics"].items():
            label = metric if sample["filter"] == "none" else f"{metric}/{sample['filter']}"
            values[label, sample["doc_id"]] = value
    return values


def _clean(metric: str, value: float | None, values: Values, dirty: Iterable[int]) -> Mapping[str, Any]:
    own = {doc_id: of_document for (label, doc_id), of_document in values.items() if label == metric}
    again = aggregated(metric.partition("/")[0], list(own.values())) if own else None
    if value is None or again is None or not math.isclose(again[0], value, rel_tol=TOLERANCE, abs_tol=1e-12):
        return {}
    kept = [of_document for doc_id, of_document in own.items() if doc_id not in dirty]
    score = aggregated(metric.partition("/")[0], kept) if kept else None
    clean, stderr = (None, None) if score is None else score
    return {"clean": clean, "clean_stderr": stderr, "clean_n": len(kept)}
