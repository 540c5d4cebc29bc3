"""Self-contained HTML pages: no request to anywhere, light and dark, on phones too.

A page is a list of sections. To add one, write a module with `CATEGORY` and a function `section(inputs)` that returns a
Section, or None where it has nothing to show, and add it to SECTIONS.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stages.lib import files
from stages.lib.report.figures import Point, thinned
from stages.lib.report_page import answer, data, ladders, planned, provenance, scores, side_by_side, training
from stages.lib.report_page.inputs import PageInputs
from stages.lib.report_page.section import Block, Chart, Section

SECTIONS: tuple[Callable[[PageInputs], Section | None], ...] = (
    answer.section,
    side_by_side.section,
    data.section,
    training.section,
    planned.section,
    ladders.section,
    scores.section,
    provenance.section,
)
CATEGORIES = (answer.CATEGORY, data.CATEGORY, training.CATEGORY, scores.CATEGORY, provenance.CATEGORY)
"""The pages of Snakemake's report; the first is its first screen."""

HERE = Path(__file__).parent
ASSETS = ("page.css", "page.js", "uplot/uPlot.min.css", "uplot/uPlot.iife.min.js", "uplot/LICENSE")
CHART_POINTS = 20_000
"""Points of a chart, over all its lines: more make a page slow."""

LEAST_POINTS = 50  # of a line


def sections(inputs: PageInputs) -> list[Section]:
    """Return the sections that have something to show."""
    return [made for section in SECTIONS if (made := section(inputs))]


@dataclass(frozen=True, kw_only=True)
class Head:
    """The head of a page. `config`: names of config files; `date`: of the newest result; `command`: that made it."""

    config: str = ""
    date: str = ""
    command: str = ""

    def title(self, runs: Sequence[str]) -> str:
        """Return the title: the config, or the runs if it is not known."""
        more = f" and {len(runs) - 2} more" if len(runs) > 2 else ""
        return f"Results of {self.config or (', '.join(runs[:2]) + more) or 'no run'}"


def write_card(path: Path, made: Sequence[Section], runs: Sequence[str], head: Head) -> None:
    """Write the page with all sections. A block of several sections stands in the first alone."""
    shown: list[Block] = []
    once = []
    for section in made:
        once.append(replace(section, blocks=[block for block in section.blocks if block not in shown]))
        shown += once[-1].blocks
    with files.atomic(path, "w") as file:
        file.write(text(once, runs, head, is_alone=True))


def write_categories(directory: Path, made: Sequence[Section], runs: Sequence[str], head: Head) -> list[Path]:
    """Write a page per category; returns their paths. They are shown inside Snakemake's report, and link to no file."""
    by_category: dict[str, list[Section]] = {category: [] for category in CATEGORIES}
    for section in made:
        by_category[section.category].append(section)
    paths = []
    for category, of_category in by_category.items():
        paths.append(directory / f"{category.lower()}.html")
        with files.atomic(paths[-1], "w") as file:
            file.write(text(of_category, runs, head, is_alone=False))
    return paths


def text(made: Sequence[Section], runs: Sequence[str], head: Head, is_alone: bool) -> str:
    """Return a page. Every text is escaped by the template engine, and every `<` of the charts' data."""
    import jinja2

    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=jinja2.FileSystemLoader(HERE),
    )
    charts = [block for section in made for block in section.blocks if isinstance(block, Chart)]
    return environment.get_template("page.html.jinja").render(
        sections=made,
        head=head,
        title=head.title(runs),
        is_alone=is_alone,
        number_of=lambda chart: next(at for at, other in enumerate(charts) if other is chart),
        chart_data=_script_json({"runs": list(runs), "charts": list(map(_chart_data, charts))}),
        has_charts=bool(charts),
        sources={name: (HERE / name).read_text(encoding="utf-8") for name in ASSETS},
    )


def _script_json(data: Any) -> str:
    """Return JSON that is inert within a script element, whatever names it holds."""
    return json.dumps(data, separators=(",", ":"), ensure_ascii=True, allow_nan=False).replace("<", "\\u003c")


def _chart_data(chart: Chart) -> Mapping[str, Any]:
    limit = max(LEAST_POINTS, CHART_POINTS // max(len(chart.lines), 1))
    parts = list(dict.fromkeys(line.part for line in chart.lines))
    groups = list(dict.fromkeys(line.group for line in chart.lines))
    lines = [
        {
            "label": line.label,
            "group": line.group,
            "dash": parts.index(line.part) if line.color is None else groups.index(line.group),
            "marked": line.marked,
            **({} if line.color is None else {"color": line.color}),
            "end": line.label if len(groups) > 1 or line.color is None else line.part,
            **_columns(thinned(line.points, limit)),
        }
        for line in chart.lines
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
