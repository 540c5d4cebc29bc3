"""Scores of a tuned run beside those of the model that it was tuned from, task by task."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from stages.lib.report.results import ModelKey
from stages.lib.report.scores import ScoreRow
from stages.lib.scoring.tasks import local_tasks

MAIN_METRICS = (*dict.fromkeys(task.metric for task in local_tasks.TASKS), "acc")

SIGNIFICANT = 3.0
"""Standard errors from which on a difference is not attributed to chance."""

LOWER_IS_BETTER = {
    *(task.metric for task in local_tasks.TASKS if task.lower_is_better),
    *("byte_perplexity", "word_perplexity", "perplexity", "brier_score", "ter"),
}


def compared(rows: Sequence[ScoreRow], origin: ModelKey, run_name: str) -> dict[str, list[ScoreRow]]:
    """Return {label: [row before, rows after by their step]} of the scores that both models have.

    The label of a task's main metric is the task, that of a further one `task, metric`. `rows`: sorted. `origin`:
    (run, step) of the model before tuning.
    """
    before = [row for row in rows if (row["run"], row["step"]) == origin]
    after = [row for row in rows if row["run"] == run_name]
    found = {}
    for task in dict.fromkeys(row["task"] for row in before):
        for label, metric in _metrics_of(task, [row["metric"] for row in before if row["task"] == task]).items():
            both = [row for row in before + after if (row["task"], row["metric"]) == (task, metric)]
            if len(both) > 1 and all(row["value"] is not None for row in both):
                found[label] = both
    return found


def _metrics_of(task: str, metrics: Collection[str]) -> dict[str, str]:
    """Return {label: metric} of the metrics of a task that are compared."""
    local = local_tasks.find(task)
    return {task: main_metric(metrics)} | {f"{task}, {name}": name for name in (local.further_metrics if local else ())}


def table(rows: Sequence[ScoreRow], origin: ModelKey, run_name: str) -> list[str]:
    """Return lines of text: a table with one line per score, then the difference of each in standard errors."""
    found = compared(rows, origin, run_name)
    if not found:
        return []
    steps = list(dict.fromkeys((row["run"], row["step"]) for both in found.values() for row in both))
    titles = [f"{name} {step}" for name, step in steps]
    widths = [max(len(title), 16) for title in titles]
    left = max(map(len, found))
    lines = [f"  {'':{left}}" + cells_of(titles, widths)]
    for task, both in found.items():
        cells = {(row["run"], row["step"]): shown(row) for row in both}
        lines.append(f"  {task:{left}}" + cells_of([cells.get(place, "-") for place in steps], widths))
    return lines + [f"  {task} {verdict(both[0], both[-1])}" for task, both in found.items()]


def cells_of(texts: Sequence[str], widths: Sequence[int]) -> str:
    """Return the cells of a table's line, right-aligned, two spaces before each."""
    return "".join(f"  {text:>{width}}" for text, width in zip(texts, widths, strict=True))


def main_metric(metrics: Collection[str]) -> str:
    """Return the metric that is shown of a task: the first of MAIN_METRICS, or the task's first."""
    return next((name for name in MAIN_METRICS if name in metrics), next(iter(metrics)))


def shown(row: ScoreRow) -> str:
    """Return a score as text: value and standard error."""
    return f"{row['value']:.3f}" + (f" +- {row['stderr']:.3f}" if row["stderr"] is not None else "")


def verdict(before: ScoreRow, after: ScoreRow) -> str:
    """Compare two scores. Their errors count as independent, which is cautious: the examples are the same."""
    gain = after["value"] - before["value"]
    gain = -gain if after["metric"] in LOWER_IS_BETTER else gain
    word = "better" if gain > 0 else "worse"
    error = math.hypot(before["stderr"] or 0, after["stderr"] or 0)
    if None in (before["stderr"], after["stderr"]) or not error:
        return f"is {word} than before tuning"
    errors = abs(gain) / error  # that of a share of 0 is 0: a base that gives no right answer
    if errors < SIGNIFICANT:
        return f"did not change significantly: {errors:.1f} standard errors {word} than before tuning"
    return f"is {word} than before tuning, by {errors:.1f} standard errors"
