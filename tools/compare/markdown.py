"""A comparison as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from tools.compare import cells
from tools.compare.comparison_report import ComparisonReport, Pair
from tools.compare.recipes import Table
from tools.compare.scores import TaskDifference

RIGHT, LEFT = "---:", ":---"


def text(report: ComparisonReport) -> str:
    """Return the whole text."""
    names = [model.name for model in report.models]
    lines = [f"# Comparison of {', '.join(map(_escaped, names[1:]))} with {_escaped(names[0])}", ""]
    lines += ["## Models", "", *_by_model(names, report.overview)]
    lines += ["", "## Differences of recipe and data", ""]
    lines += _by_model(names, report.recipe_differences) if report.recipe_differences else ["The recipes are equal."]
    for pair in report.pairs:
        lines += ["", *_pair(pair)]
    lines += ["", "## Method", "", *(f"- {_escaped(sentence)}" for sentence in cells.method(report))]
    return "\n".join(lines) + "\n"


def _pair(pair: Pair) -> list[str]:
    lines = [f"## {_escaped(pair.other.name)} against {_escaped(pair.reference.name)}", ""]
    if pair.rows:
        lines += [f"{_escaped(pair.other.name)} is {cells.counts(pair.rows)}.", "", *_scores(pair)]
    else:
        lines += ["No task can be compared."]
    if pair.notes:
        lines += ["", "Notes:", "", *(f"- {_escaped(note)}" for note in pair.notes)]
    return lines


def _scores(pair: Pair) -> list[str]:
    head = ["suite", "task", "metric", pair.reference.name, pair.other.name, "difference", "95% interval", "p"]
    sides = [LEFT, LEFT, LEFT, *[RIGHT] * 7, LEFT]
    return _table([*head, "p (Holm)", "n", "verdict"], [_row(row) for row in pair.rows], sides)


def _row(row: TaskDifference) -> list[str]:
    verdict = f"**{row.verdict}**" if row.significant else row.verdict
    p = row.difference.p if row.difference is not None else None
    shown = [cells.score(row.reference), cells.score(row.other), cells.difference(row), cells.interval(row)]
    arrow = "lower" if row.lower_is_better else "higher"
    metric = f"{row.metric} ({arrow} is better)"
    return [row.suite, row.task, metric, *shown, cells.p_value(p), cells.p_value(row.corrected_p), cells.documents(row),
            verdict]  # fmt: skip


def _by_model(names: Sequence[str], table: Table) -> list[str]:
    rows = [[key, *found] for key, found in table.items()]
    return _table(["", *names], rows, [LEFT] * (1 + len(names)))


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], sides: Sequence[str]) -> list[str]:
    return [_line(head), f"| {' | '.join(sides)} |", *map(_line, rows)]


def _line(texts: Sequence[str]) -> str:
    return f"| {' | '.join(map(_escaped, texts))} |"


def _escaped(text: str) -> str:
    """Return a text for a table's cell, in which a bar would begin a new one."""
    return " ".join(text.replace("|", "\\|").split())
