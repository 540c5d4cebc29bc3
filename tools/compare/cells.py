"""Numbers of a comparison as text, the same in Markdown and HTML, and the sentences around its tables."""

from __future__ import annotations

from stages.lib.scoring import aggregations
from tools.compare.comparison_report import ComparisonReport
from tools.compare.paired import LEVEL
from tools.compare.scores import SIGNIFICANT, Score, TaskDifference

UNKNOWN = "-"


def score(found: Score) -> str:
    """Return a score and its standard error."""
    return value(found) + ("" if found.stderr is None else f" +- {error(found)}")


def value(found: Score) -> str:
    """Return a score without its standard error."""
    return "not finite" if found.value is None else f"{found.value:.4f}"


def error(found: Score) -> str:
    """Return the standard error of a score."""
    return UNKNOWN if found.stderr is None else f"{found.stderr:.4f}"


def difference(row: TaskDifference) -> str:
    """Return the difference, with its sign."""
    return UNKNOWN if row.difference is None else f"{row.difference.value:+z.4f}"


def interval(row: TaskDifference) -> str:
    """Return the bounds of the difference."""
    found = row.difference
    if found is None or found.low is None or found.high is None:
        return UNKNOWN
    return f"{found.low:+z.4f} to {found.high:+z.4f}"


def p_value(p: float | None) -> str:
    """Return a p-value with three digits after the point, or that it is below them."""
    if p is None:
        return UNKNOWN
    return "< 0.001" if p < 0.0005 else f"{p:.3f}"


def documents(row: TaskDifference) -> str:
    """Return the number of joined documents."""
    return "unpaired" if row.n is None else f"{row.n:,}"


def method(report: ComparisonReport) -> list[str]:
    """Return sentences on how the differences were computed."""
    reference = report.models[0].name
    sentences = [
        f"Differences are those from {reference}, of each task's main metric.",
        f"n is the number of questions or texts that both were scored on. The {LEVEL:.0%} interval is a bootstrap over "
        f"the documents that they are from ({aggregations.RESAMPLES:,} resamples), p that of a paired randomization "
        "test.",
        f"p (Holm) is corrected for the number of p-values of this report, {report.num_tests}. A difference is "
        f"significant if it is below {SIGNIFICANT}. The intervals are not corrected.",
    ]
    if any(row.difference is not None and row.n is None for pair in report.pairs for row in pair.rows):
        sentences.append(
            "An unpaired difference has no per-sample logs of both models, or a metric that is no sum over documents: "
            "it follows from the two standard errors, as if the documents were different ones, which is cautious."
        )
    return sentences


def counts(rows: list[TaskDifference]) -> str:
    """Return in words in how many tasks a model is better and worse."""
    verdicts = [row.verdict for row in rows]
    better, worse = verdicts.count("better"), verdicts.count("worse")
    return f"significantly better in {better} and worse in {worse} of {len(rows)} tasks"
