"""Self-contained HTML pages: no request to anywhere, light and dark, on phones too.

A page is a list of sections, and a section a list of blocks, which the template shows by their `kind`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from stages.lib import files
from stages.lib.render.chart import Chart, Line, Point, thinned
from stages.lib.render.markdown import escaped
from stages.lib.render.table import Table

HERE = Path(__file__).parent
ASSETS = ("page.css", "page.js", "uplot/uPlot.min.css", "uplot/uPlot.iife.min.js", "uplot/LICENSE")
CHART_POINTS = 20_000
"""Points of a chart, over all its lines: more make a page slow."""

LEAST_POINTS = 50  # of a line

LABELED = 20
"""Lines of a chart that can have their names at their ends without covering each other."""


@dataclass(frozen=True, kw_only=True)
class Bars:
    """Bars of shares, {part: share}, that add up to 1: one per (label, note), with the same parts in the same color.

    `colors`: {part: number of its color}.
    """

    kind: ClassVar[str] = "bars"
    parts: Sequence[str]
    rows: Sequence[tuple[str, str, Mapping[str, float]]]
    colors: Mapping[str, int]
    caption: str = ""


@dataclass(frozen=True, kw_only=True)
class HeatCell:
    """A cell of a heat map. `share`: from 0, the worst, to 1, the best."""

    text: str
    share: float


@dataclass(frozen=True, kw_only=True)
class HeatMap:
    """Values over two keys, colored from the worst to the best. A cell is None where there is no value."""

    kind: ClassVar[str] = "heat"
    caption: str
    x_label: str
    y_label: str
    x_values: Sequence[str]
    y_values: Sequence[str]
    rows: Sequence[Sequence[HeatCell | None]]


@dataclass(frozen=True, kw_only=True)
class Texts:
    """Texts that a model wrote: (label, prompt, continuation)."""

    kind: ClassVar[str] = "texts"
    rows: Sequence[tuple[str, str, str]]
    caption: str


@dataclass(frozen=True, kw_only=True)
class Notes:
    """Short paragraphs. `warning`: they need the reader's attention."""

    kind: ClassVar[str] = "notes"
    lines: Sequence[str]
    warning: bool = False


@dataclass(frozen=True, kw_only=True)
class Graph:
    """A drawing of jobs in columns, as `job_graph` lays it out."""

    kind: ClassVar[str] = "graph"
    svg: str
    caption: str


Block = Table | Chart | Bars | HeatMap | Texts | Notes | Graph


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of a page. `category`: the page of Snakemake's report that it stands on."""

    title: str
    blocks: Sequence[Block]
    category: str = ""

    @classmethod
    def of(cls, category: str, title: str, blocks: Iterable[Block]) -> Section | None:
        """Return a section of the blocks that have something to show; None without one."""
        shown = [block for block in blocks if not _is_empty(block)]
        return cls(category=category, title=title, blocks=shown) if shown else None

    @property
    def anchor(self) -> str:
        """The name of the section in links."""
        return "".join(letter if letter.isalnum() else "-" for letter in self.title.lower())


def _is_empty(block: Block) -> bool:
    content = block.svg if isinstance(block, Graph) else block.lines if isinstance(block, Chart | Notes) else block.rows
    return not content


@dataclass(frozen=True, kw_only=True)
class Head:
    """The head of a page. `date`: of the newest result that it shows; `command`: the one that made it."""

    title: str
    date: str = ""
    command: str = ""


def write(path: Path, sections: Sequence[Section], runs: Sequence[str], head: Head, is_alone: bool = True) -> None:
    """Write a page. `runs`: those that can be turned off in all charts.

    `is_alone`: with a title and links to the sections; a block of several sections then stands in the first alone.
    Every text is escaped by the template engine, and every `<` of the charts' data.
    """
    import jinja2

    if is_alone:
        shown: list[Block] = []
        once = []
        for section in sections:
            once.append(replace(section, blocks=[block for block in section.blocks if block not in shown]))
            shown += once[-1].blocks
        sections = once
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=jinja2.FileSystemLoader(HERE),
    )
    charts = [block for section in sections for block in section.blocks if isinstance(block, Chart)]
    data = {"runs": list(runs), "charts": [_chart_data(chart, runs) for chart in charts]}
    text = environment.get_template("page.html.jinja").render(
        sections=sections,
        head=head,
        is_alone=is_alone,
        number_of=lambda chart: next(at for at, other in enumerate(charts) if other is chart),
        chart_data=json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
        has_charts=bool(charts),
        sources={name: (HERE / name).read_text(encoding="utf-8") for name in ASSETS},
    )
    with files.atomic(path, "w") as file:
        file.write(text)


def markdown(title: str, sections: Iterable[Section]) -> str:
    """Return the tables and notes of sections as Markdown; other blocks, and sections of those alone, are left out."""
    lines = [f"# {escaped(title)}"]
    for section in sections:
        blocks = [block for block in section.blocks if isinstance(block, Table | Notes)]
        lines += ["", f"## {escaped(section.title)}"] if blocks else []
        for block in blocks:
            if isinstance(block, Table):
                lines += block.markdown()[:-1]
            else:
                lines += ["", *(f"- {escaped(line)}" for line in block.lines)]
    return "\n".join(lines) + "\n"


def _names_at_ends(lines: Sequence[Line]) -> list[str]:
    """Return the name at the end of each line, or "". Of too many lines, the first of each color has one."""
    several = len({line.group for line in lines}) > 1
    if len(lines) <= LABELED:
        return [line.label if several or line.color is None else line.part for line in lines]
    colors = {line.color for line in lines} - {None}
    first = {line.color: number for number, line in reversed([*enumerate(lines)])}
    are_named = 0 < len(colors) <= LABELED
    return [line.part if are_named and first[line.color] == number else "" for number, line in enumerate(lines)]


def _chart_data(chart: Chart, runs: Sequence[str]) -> Mapping[str, Any]:
    limit = max(LEAST_POINTS, CHART_POINTS // max(len(chart.lines), 1))
    parts = list(dict.fromkeys(line.part for line in chart.lines))
    groups = list(dict.fromkeys([*runs, *(line.group for line in chart.lines)]))
    lines = [
        {
            "label": line.label,
            "group": line.group,
            "dash": parts.index(line.part) if line.color is None else groups.index(line.group),
            "marked": line.marked,
            **({} if line.color is None else {"color": line.color}),
            "end": end,
            **_columns(thinned(line.points, limit)),
        }
        for line, end in zip(chart.lines, _names_at_ends(chart.lines), strict=True)
    ]
    levels = [{"label": label, "value": value} for label, value in chart.levels.items()]
    again = max((-(-len(line.points) // limit) for line in chart.lines), default=1)
    steps = chart.steps_per_point * again
    return {
        "y_label": chart.y_label,
        "lines": lines,
        "levels": levels,
        "marks": chart.marks,
        "steps_per_point": steps,
        "log_tokens": chart.log_tokens,
    }


def _columns(points: Iterable[Point]) -> dict[str, list[Any]]:
    tokens, values, errors = zip(*points, strict=True)
    found = {"x": [round(token) for token in tokens], "y": [_rounded(value) for value in values]}
    return found | ({"error": [error and _rounded(error) for error in errors]} if any(errors) else {})


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")
