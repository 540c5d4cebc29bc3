"""A comparison as one HTML page, which needs no other file: tables, intervals and curves as inline SVG."""

from __future__ import annotations

import re
from pathlib import Path

from tools.compare import cells, score_curves
from tools.compare.comparison_report import ComparisonReport, Pair
from tools.compare.scores import TaskDifference

TEMPLATE = Path(__file__).with_name("page.html.jinja")
MARKS = {"better": "\u25b2 better", "worse": "\u25bc worse"}
"""Verdicts that are found without reading; others are their words."""

WIDTH, MIDDLE, REACH = 140, 70, 64  # of the drawing of an interval, in pixels


def text(report: ComparisonReport) -> str:
    """Return the whole page. Every text is escaped by the template engine."""
    import jinja2

    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True,
                                     lstrip_blocks=True)  # fmt: skip
    curves = [_inline(svg, number) for number, svg in enumerate(score_curves.draw(report.points).values())]
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    return (
        template.render(report=report, cells=cells, pairs=[_pair(pair) for pair in report.pairs], curves=curves) + "\n"
    )


def _pair(pair: Pair) -> dict[str, object]:
    """Return what the template shows of a pair."""
    longest = _longest(pair.rows)
    rows = [
        {
            "data": row,
            "mark": MARKS.get(row.verdict, row.verdict),
            "drawing": _drawing(row, longest.get(row.metric, 0.0)),
        }
        for row in pair.rows
    ]
    return {"data": pair, "rows": rows, "counts": cells.counts(pair.rows)}


def _longest(rows: list[TaskDifference]) -> dict[str, float]:
    """Return for each metric the largest bound of its intervals, which is the edge of their drawings."""
    longest: dict[str, float] = {}
    for row in rows:
        if row.difference is not None and row.difference.low is not None and row.difference.high is not None:
            edge = max(abs(row.difference.low), abs(row.difference.high))
            longest[row.metric] = max(longest.get(row.metric, 0.0), edge)
    return longest


def _drawing(row: TaskDifference, edge: float) -> dict[str, float] | None:
    """Return the places of an interval in its drawing, in which better is to the right; None for no interval."""
    found = row.difference
    if found is None or found.low is None or found.high is None or edge == 0:
        return None
    scale = (-REACH if row.lower_is_better else REACH) / edge
    ends = sorted((found.low * scale, found.high * scale))
    return {"low": MIDDLE + ends[0], "high": MIDDLE + ends[1], "at": MIDDLE + found.value * scale, "width": WIDTH,
            "middle": MIDDLE}  # fmt: skip


def _inline(svg: str, number: int) -> str:
    """Return an SVG as part of a page: without the head of a file, and with names that no other figure has."""
    drawn = svg[svg.index("<svg") :]
    drawn = re.sub(r"<metadata>.*?</metadata>", "", drawn, flags=re.DOTALL)
    return re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>figure{number}-", drawn)
