"""The report as self-contained HTML pages: results/card.html, and one page per category of Snakemake's report.

To add a section, write a module with `CATEGORY` and a function `section(inputs)` that returns a Section, or None if it
has nothing to show, and add it to SECTIONS.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from stages.lib.pages import data, provenance, scores, training
from stages.lib.pages.inputs import ReportInputs
from stages.lib.pages.scores import BITS, FIRST, HIGHER, LOWER, REACHED, ScoreTable
from stages.lib.render import numbers, page
from stages.lib.render.page import Block, Head, Notes, Section
from stages.lib.render.table import Cell, Table
from stages.lib.scoring.aggregations import BITS_OF_ANSWER

CATEGORY = "Answer"
PROBLEMS = 6  # that are listed


def answer(inputs: ReportInputs) -> Section | None:
    """Return the first screen: what was trained on what by which code, how good it is, how healthy the training was."""
    blocks: list[Block] = []
    if inputs.results.runs():
        table = ScoreTable(inputs.last_rows, inputs.references, FIRST)
        verdicts = [*table.verdicts(inputs.differences)]
        blocks += [_runs(inputs, table), Notes(lines=verdicts), _problems(inputs)]
        blocks += [inputs.charts["loss"], data.mix_bars(inputs), training.health(inputs)]
    else:
        blocks += [Notes(lines=["There are no results yet."]), _problems(inputs)]
    return Section.of(CATEGORY, "Results", blocks)


def _problems(inputs: ReportInputs) -> Notes:
    lines = [f"missing: {name}" for name in inputs.missing] + [*inputs.warnings]
    if len(lines) > PROBLEMS:
        lines = [*lines[:PROBLEMS], f"{len(lines) - PROBLEMS:,} more, in summary.txt"]
    return Notes(lines=lines, warning=True)


def _runs(inputs: ReportInputs, table: ScoreTable) -> Table:
    titles = ["run", *table.titles(), "trained on", "tokens", "parameters", "code"]
    means = {name: f"means of {count} milestones" for name, count in inputs.averages.items()}
    rows = [
        [Cell(text=name, strong=True, note=means.get(name, "")), *table.cells(name), *_facts(inputs, name)]
        for name in inputs.results.runs()
    ]
    rows += [[name, *cells, "", "", "", ""] for name, cells in table.reference_rows()]
    caption = (
        f"Scores of the last milestone of each run \u00b1 standard error; the best run of a column is bold. {HIGHER}: "
        f"higher is better, {LOWER}: lower. {REACHED}: at least as good as the best run."
    )
    caption += f" {BITS}" if any(metric == BITS_OF_ANSWER for _, metric in table.columns) else ""
    caption += f" {table.further} further tasks stand under Scores." if table.further else ""
    return Table(titles=titles, rows=rows, caption=caption, numeric=range(1, 1 + len(table.columns)))


def _facts(inputs: ReportInputs, run_name: str) -> list[Cell | str]:
    model, parameters = inputs.results.last_models().get(run_name), inputs.parameters(run_name)
    size = numbers.short(parameters) if parameters else numbers.UNKNOWN
    if model is None:
        return [numbers.UNKNOWN, numbers.UNKNOWN, size, numbers.UNKNOWN]
    origin = inputs.results.tuned_from(run_name)
    started = f"after {origin[0]}, step {origin[1]:,}" if origin else ""
    trained_on = Cell(text=data.mix_in_words(inputs, run_name), note=started)
    tokens = Cell(text=f"{model.identity['tokens']:,}", note=f"{model.identity['step']:,} steps")
    return [trained_on, tokens, size, provenance.commit_cell(model.record.get("commit"))]


SECTIONS: tuple[Callable[[ReportInputs], Section | None], ...] = (
    answer,
    scores.side_by_side,
    data.section,
    training.section,
    training.plans,
    training.ladders,
    scores.section,
    provenance.section,
)
CATEGORIES = (CATEGORY, data.CATEGORY, training.CATEGORY, scores.CATEGORY, provenance.CATEGORY)
"""The pages of Snakemake's report; the first is its first screen."""


def write(inputs: ReportInputs, card: Path, directory: Path | None, config: str = "", command: str = "") -> list[Path]:
    """Write the page with all sections, and one per category into a directory; returns their paths.

    The pages of categories are shown inside Snakemake's report, and link to no file. `config`: names of config files;
    `command`: the one that made the results.
    """
    names = inputs.results.runs()
    sections = [made for section in SECTIONS if (made := section(inputs))]
    started = [one.record["started"] for one in inputs.results.all() if "started" in one.record]
    more = f" and {len(names) - 2} more" if len(names) > 2 else ""
    title = f"Results of {config or (', '.join(names[:2]) + more) or 'no run'}"
    head = Head(title=title, date=max(started, default="")[:10], command=command)
    page.write(card, sections, names, head)
    paths = [card]
    if directory is None:
        return paths
    for category in CATEGORIES:
        paths.append(directory / f"{category.lower()}.html")
        page.write(paths[-1], [one for one in sections if one.category == category], names, head, is_alone=False)
    return paths
