"""Charts: lines against training tokens, drawn as SVG, with the same bytes for the same numbers, or on a page."""

from __future__ import annotations

import colorsys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from stages.lib import files

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Point = tuple[float, float, float | None]
"""(tokens, value, standard error)"""

STYLE = {
    "figure.figsize": (7.2, 4.0),
    "figure.constrained_layout.use": True,
    "font.family": "sans-serif",
    "font.size": 10,
    "svg.fonttype": "none",  # text stays text: small files that can be searched
    "svg.hashsalt": "caravan",
    "text.parse_math": False,  # a run's name may have dollar signs
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.8,
    "axes.axisbelow": True,
    "lines.linewidth": 1.6,
    "legend.frameon": False,
    "legend.fontsize": 9,
}
COLORS = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#e69f00",
    "#56b4e9",
    "#000000",
)  # Okabe and Ito: distinct for the color-blind
DASHES = ("-", "--", ":", "-.", (0, (10, 3)), (0, (6, 2, 1, 2, 1, 2)), (0, (1, 4)), (0, (8, 2, 3, 2)))
LEVELS = ("--", ":", "-.", (0, (1, 4)))
MARKERS = ("o", "s", "^", "D", "v")
NEUTRAL = -1
NEUTRAL_COLOR = "#777777"
GOLDEN = 0.381966  # of the circle of hues: neighbors differ, however many colors there are
LEGEND_LINES = 20  # a legend of more lines leaves no room for the lines
POINTS = 1000  # more points per line cannot be seen, and make the file large


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line of a figure; a marked line shows its points.

    Without `color`, its group (a run) has a color, and its part a dash. With `color`, the number of
    a color, its part has that color (NEUTRAL: the line of all parts together), and its group a dash.
    """

    label: str
    group: str
    part: str
    points: list[Point]
    marked: bool = True
    color: int | None = None


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Lines against training tokens; on a page a reader can zoom, point at, and turn them on and off, run by run.

    `levels`: {label: value} of horizontal lines. `marks`: {run: {what happened: tokens at which it did}}.
    `steps_per_point`: the most steps that a point of a line stands for. `log_tokens`: tokens on a logarithmic axis.
    """

    kind: ClassVar[str] = "chart"
    title: str
    y_label: str
    lines: Sequence[Line]
    caption: str = ""
    levels: Mapping[str, float] = field(default_factory=dict)
    marks: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)
    steps_per_point: int = 1
    log_tokens: bool = False


def draw(path: Path, chart: Chart) -> None:
    """Write a chart as SVG."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    lines = chart.lines
    with matplotlib.rc_context(STYLE), files.atomic(path) as file:  # type: ignore[arg-type]
        figure = Figure()
        axes = figure.subplots()
        groups = _numbers(line.group for line in lines)
        parts = _numbers(line.part for line in lines)
        for line in lines:
            _draw_line(axes, line, groups[line.group], parts[line.part])
        for number, (label, level) in enumerate(chart.levels.items()):
            axes.axhline(level, color="#888888", linewidth=1, linestyle=LEVELS[number % len(LEVELS)], label=label)
        if 0 < len(lines) <= LEGEND_LINES:
            axes.legend(loc="best")
        elif lines:
            axes.set_title(f"{len(lines)} lines, named in card.html", loc="right", fontsize=9)
        else:
            axes.text(0.5, 0.5, "no results yet", ha="center", va="center", transform=axes.transAxes)
        axes.set_title(chart.title, loc="center" if len(lines) <= LEGEND_LINES else "left")
        axes.set_xlabel("training tokens")
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.set_ylabel(chart.y_label)
        figure.savefig(file, format="svg", metadata={"Date": None})


def _numbers(names: Iterable[str]) -> dict[str, int]:
    """Number the names in order of their first appearance."""
    return {name: number for number, name in enumerate(dict.fromkeys(names))}


def color_of(number: int) -> str:
    """Return a color: one of COLORS, then further hues."""
    if number == NEUTRAL:
        return NEUTRAL_COLOR
    if number < len(COLORS):
        return COLORS[number]
    red, green, blue = colorsys.hls_to_rgb(number * GOLDEN % 1, 0.4, 0.6)
    return f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"


def _draw_line(axes: Axes, line: Line, group: int, part: int) -> None:
    points = thinned(line.points)
    dash = part if line.color is None else group
    style: dict[str, Any] = {
        "color": color_of(group if line.color is None else line.color),
        "linestyle": DASHES[dash % len(DASHES)],
        "label": line.label,
    }
    if line.marked:
        style |= {"marker": MARKERS[dash % len(MARKERS)], "markersize": 5}
    else:
        style |= {"linewidth": 0.9, "alpha": 0.6}
    tokens, values, errors = zip(*points, strict=True)
    if any(errors):
        axes.errorbar(tokens, values, yerr=[error or 0 for error in errors], capsize=3, **style)
    else:
        axes.plot(tokens, values, **style)


def thinned(points: list[Point], limit: int = POINTS, largest: bool = False) -> list[Point]:
    """Return at most `limit` points: means of equally many neighbors, or the `largest` of them."""
    stride = -(-len(points) // limit)
    if stride <= 1:
        return points
    return [_joined(points[at : at + stride], largest) for at in range(0, len(points), stride)]


def _joined(points: Sequence[Point], largest: bool) -> Point:
    tokens, values, _ = zip(*points, strict=True)
    return sum(tokens) / len(points), max(values) if largest else sum(values) / len(points), None
