"""The first screen: what was trained on what by which code, how good it is, and whether the training was healthy."""

from __future__ import annotations

from stages.lib.report_page import health_table, mix
from stages.lib.report_page.inputs import PageInputs
from stages.lib.report_page.score_table import COLUMNS, HIGHER, LOWER, REACHED, ScoreTable
from stages.lib.report_page.section import Block, Cell, Notes, Section, Table
from stages.lib.report_page.training import loss_charts

CATEGORY = "Answer"
PROBLEMS = 6  # that are listed
COMMIT = 10  # letters of a commit that are shown


def section(inputs: PageInputs) -> Section:
    """Return the section with the answer."""
    if not inputs.results.runs():
        nothing = [Notes(lines=["There are no results yet."]), *_problems(inputs)]
        return Section(category=CATEGORY, title="Results", blocks=nothing)
    blocks: list[Block] = [_runs(inputs), *_verdicts(inputs), *_problems(inputs)]
    blocks += [*loss_charts(inputs), *mix.bars(inputs), *health_table.blocks(inputs)]
    return Section(category=CATEGORY, title="Results", blocks=blocks)


def _problems(inputs: PageInputs) -> list[Block]:
    lines = [f"missing: {name}" for name in inputs.missing] + [*inputs.warnings]
    if len(lines) > PROBLEMS:
        lines = [*lines[:PROBLEMS], f"{len(lines) - PROBLEMS:,} more, in summary.txt"]
    return [Notes(lines=lines, warning=True)] if lines else []


def _runs(inputs: PageInputs) -> Table:
    scores = ScoreTable(inputs.rows, inputs.references)
    titles = ["run", *scores.titles(), "trained on", "tokens", "parameters", "code"]
    rows = [
        [Cell(text=name, strong=True), *scores.cells(name), *_facts(inputs, name)] for name in inputs.results.runs()
    ]
    rows += [[name, *cells, "", "", "", ""] for name, cells in scores.reference_rows()]
    further = len(scores.columns) - COLUMNS
    caption = (
        f"Scores of the last milestone of each run \u00b1 standard error; the best run of a column is bold. {HIGHER}: "
        f"higher is better, {LOWER}: lower. {REACHED}: at least as good as the best run."
    )
    caption += f" {further} further tasks stand under Scores." if further > 0 else ""
    return Table(titles=titles, rows=rows, caption=caption, numeric=range(1, 1 + len(scores.titles())))


def _facts(inputs: PageInputs, run_name: str) -> list[Cell | str]:
    model = inputs.last_models().get(run_name)
    parameters = inputs.parameters(run_name)
    size = f"{parameters / 1e6:,.1f} M" if parameters else "-"
    if model is None:
        return ["-", "-", size, "-"]
    origin = inputs.results.tuned_from(run_name)
    started = f"after {origin[0]}, step {origin[1]:,}" if origin else ""
    trained_on = Cell(text=mix.in_words(inputs, run_name), note=started)
    tokens = Cell(text=f"{model.identity['tokens']:,}", note=f"{model.identity['step']:,} steps")
    return [trained_on, tokens, size, commit(model.record.get("commit"))]


def commit(found: str | None) -> Cell | str:
    """Return the commit of a record: `+` after it says that the checkout had changes."""
    if not found:
        return "-"
    changed = found.endswith("+")
    title = found + (" the checkout had changes that are not committed" if changed else "")
    return Cell(text=found[:COMMIT] + "+" * changed, title=title, code=True)


def _verdicts(inputs: PageInputs) -> list[Block]:
    lines = [*ScoreTable(inputs.rows, inputs.references).verdicts()]
    return [Notes(lines=lines)] if lines else []
