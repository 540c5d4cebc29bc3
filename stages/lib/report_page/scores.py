"""Scores: all tasks of all runs, scores over tokens, before and after tuning, contamination, and the whole table."""

from __future__ import annotations

from collections.abc import Iterator

from stages.lib import files
from stages.lib.errors import UserError
from stages.lib.report import comparison
from stages.lib.report.scores import COLUMNS, ScoreRow
from stages.lib.report_page.inputs import PageInputs
from stages.lib.report_page.score_table import ScoreTable
from stages.lib.report_page.section import Block, Cell, Chart, Section, Table, Texts
from stages.lib.scoring.inputs import PARITY

CATEGORY = "Scores"
TEXTS = 3  # of each run
ROWS = 2000  # rows of the whole table on the page: 40,000 would make it slow
CAPTIONS = {
    "bits_per_byte": "Bits per byte of validation text: the model's log-likelihood of text that it was not trained on, "
    "per byte of UTF-8. It does not depend on the tokenizer; 8 bits encode a byte without any model. Lower is better.",
    "accuracy": "Accuracy of the multiple-choice tasks with one standard error on each side. Horizontal lines are "
    "chance, baselines, and for each task the best rule without a model (trivial).",
}


def section(inputs: PageInputs) -> Section | None:
    """Return the section on the scores; None without a score."""
    if not inputs.rows:
        return None
    blocks = [*_charts(inputs), _all_tasks(inputs), *_tuning(inputs), *_contamination(inputs), *_texts(inputs)]
    blocks += _table(inputs)
    return Section(category=CATEGORY, title="Scores", blocks=blocks)


def _charts(inputs: PageInputs) -> Iterator[Block]:
    for figure in inputs.figures:
        if figure.name in CAPTIONS and figure.lines:
            yield Chart(
                title=figure.title,
                y_label=figure.y_label,
                lines=figure.lines,
                levels=figure.levels,
                caption=CAPTIONS[figure.name],
            )


def _all_tasks(inputs: PageInputs) -> Table:
    """The scores of all tasks, one row each: a table of hundreds of tasks is read downward."""
    scores = ScoreTable(inputs.rows, inputs.references)
    number = len(scores.columns)
    found = [(name, scores.cells(name, number)) for name in inputs.results.runs()]
    found += scores.reference_rows(number)
    titles = ["task", "metric", *(name for name, _ in found)]
    rows = [
        [title, scores.columns[at][1], *(cells[at] for _, cells in found)]
        for at, title in enumerate(scores.titles(number))
    ]
    caption = "The last scores of each run by the main metric of each task, beside baselines and rules without a model."
    return Table(titles=titles, rows=rows, caption=caption, numeric=range(2, len(titles)))


def _tuning(inputs: PageInputs) -> Iterator[Block]:
    rows: list[list[str | Cell]] = []
    for run_name in inputs.results.runs():
        origin = inputs.results.tuned_from(run_name)
        for label, both in comparison.compared(inputs.rows, origin, run_name).items() if origin else ():
            scores = [comparison.shown(row).replace("+-", "\u00b1") for row in (both[0], both[-1])]
            rows.append([run_name, label, *scores, comparison.verdict(both[0], both[-1])])
    titles = ["run", "task", "before tuning", "after", "the score"]
    if rows:
        yield Table(titles=titles, rows=rows, caption="Tuned runs beside the models that they were tuned from.")


def _contamination(inputs: PageInputs) -> Iterator[Block]:
    known = [row for row in inputs.rows if row.get("contaminated") is not None]
    last = {(row["run"], row["task"], row["metric"]): row for row in known}
    rows = [_contaminated(row) for row in sorted(last.values(), key=lambda row: -row["contaminated"])]
    caption = "Items of tasks that stand in the training text, and the score over the others."
    titles = ["run", "task", "metric", "contaminated", "score", "without them", "items left"]
    if rows:
        yield Table(titles=titles, rows=rows, caption=caption, numeric=range(-4, 0))


def _contaminated(row: ScoreRow) -> list[str | Cell]:
    score = "-" if row["value"] is None else comparison.shown(row).replace("+-", "\u00b1")
    clean, left = "-", "-"
    if row.get("clean") is not None:
        clean = comparison.shown({"value": row["clean"], "stderr": row["clean_stderr"]}).replace("+-", "\u00b1")
        left = f"{row['clean_n']:,}"
    return [row["run"], row["task"], row["metric"], f"{row['contaminated']:.1%}", score, clean, left]


def _table(inputs: PageInputs) -> Iterator[Block]:
    rows = [*inputs.rows, *inputs.references]
    shown = rows[:ROWS]
    titles = [name for name in COLUMNS if any(row.get(name) is not None for row in shown)]
    more = f" The first {ROWS:,} of {len(rows):,} rows; scores.csv has all." if len(rows) > ROWS else ""
    caption = "scores.csv: every run at every milestone; then baselines and trivial readers, which use no model." + more
    cells = [[_shown(row.get(name)) for name in titles] for row in shown]
    numeric = range(titles.index("value"), len(titles))
    yield Table(titles=titles, rows=cells, caption=caption, numeric=numeric, saved_as="scores.csv")


def _shown(value: str | float | None) -> Cell | str:
    if value is None or isinstance(value, str):
        return value or ""
    return Cell(text=f"{value:,}" if isinstance(value, int) else f"{value:.4g}", value=value)


def _texts(inputs: PageInputs) -> Iterator[Block]:
    """Yield texts that the newest export of each run wrote, as its parity check stored them."""
    newest = {run_name: made for (run_name, _), made in inputs.results.exports.items()}  # sorted by step
    rows = []
    for run_name, export in newest.items():
        path = export.directory / PARITY
        try:
            found = files.read_json_object(path).get("greedy") if path.exists() else None
        except UserError:
            found = None
        if not isinstance(found, dict) or not isinstance(texts := found.get("continuations"), list):
            continue
        for text in texts[:TEXTS]:
            if isinstance(text, dict) and {"prompt", "text"} <= text.keys():
                step = export.identity["step"]
                rows.append((f"{run_name}, step {step:,}", str(text["prompt"]), str(text["text"])))
    if rows:
        yield Texts(
            rows=rows,
            caption="What the newest export of each run writes after the beginning of validation text, greedily: the "
            "likeliest token each time. The parity check stored it; larger models are compared block by block, and "
            "write nothing there.",
        )
