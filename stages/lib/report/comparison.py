"""Scores of a tuned run beside those of the model that it was tuned from: before and after, by the same tasks."""

import math

MAIN = ("bits_per_byte", "acc_mutual_info", "acc")

SURE = 3.0
"""Standard errors from which on a difference is not taken for chance."""

LOWER_IS_BETTER = ("bits_per_byte", "byte_perplexity", "word_perplexity", "perplexity", "brier_score")


def compared(rows, origin, run_name):
    """{task: [row before, rows after by their step]} of the tasks by which both were scored.

    `rows`: dictionaries of run, step, task, metric, value and stderr, sorted. `origin`: (run, step) of what was tuned.
    """
    before = [row for row in rows if (row["run"], row["step"]) == origin]
    after = [row for row in rows if row["run"] == run_name]
    found = {}
    for task in dict.fromkeys(row["task"] for row in before):
        metrics = [row["metric"] for row in before if row["task"] == task]
        metric = main_metric(metrics)
        both = [row for row in before + after if (row["task"], row["metric"]) == (task, metric)]
        if len(both) > 1 and all(row["value"] is not None for row in both):
            found[task] = both
    return found


def table(rows, origin, run_name):
    """Lines of text: a task a line, then for each how sure it is that the last model is better or worse than before."""
    found = compared(rows, origin, run_name)
    if not found:
        return []
    steps = list(dict.fromkeys((row["run"], row["step"]) for both in found.values() for row in both))
    titles = [f"{name} {step}" for name, step in steps]
    widths = [max(len(title), 16) for title in titles]
    left = max(map(len, found))
    lines = [f"  {'':{left}}" + _cells(titles, widths)]
    for task, both in found.items():
        cells = {(row["run"], row["step"]): shown(row) for row in both}
        lines.append(f"  {task:{left}}" + _cells([cells.get(place, "-") for place in steps], widths))
    return lines + [f"  {task} {_verdict(both[0], both[-1])}" for task, both in found.items()]


def _cells(texts, widths):
    return "".join(f"  {text:>{width}}" for text, width in zip(texts, widths, strict=True))


def main_metric(metrics):
    """Of a task's metrics (names, in order) the one that speaks for it."""
    return next((name for name in MAIN if name in metrics), next(iter(metrics)))


def shown(row):
    """A score as text: value and standard error."""
    return f"{row['value']:.3f}" + (f" +- {row['stderr']:.3f}" if row["stderr"] is not None else "")


def _verdict(before, after):
    """The two errors count as independent, which is cautious: both models were asked the same."""
    gain = after["value"] - before["value"]
    gain = -gain if after["metric"] in LOWER_IS_BETTER else gain
    word = "better" if gain > 0 else "worse"
    if not before["stderr"] or not after["stderr"]:
        return f"is {word} than before tuning"
    errors = abs(gain) / math.hypot(before["stderr"], after["stderr"])
    if errors < SURE:
        return f"did not move surely: {errors:.1f} standard errors {word} than before tuning"
    return f"is {word} than before tuning, by {errors:.1f} standard errors"
