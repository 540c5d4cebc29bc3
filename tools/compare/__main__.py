"""Compare trained models: differences of recipe, paired differences of scores, curves over training tokens.

    python -m tools.compare base wide                       # the newest scored milestone of each run
    python -m tools.compare base:300 base:1000 wide:1000 --html comparison.html --csv comparison.csv

The first model is the reference. Scores come from results/runs/RUN/eval; a task's difference is paired over the
documents in the logs of both models, has a bootstrap interval and a p-value that is corrected for the number of tasks.
Without the logs it follows from the standard errors. Markdown is printed unless --markdown names a file for it. The
HTML file needs no other file, and has the curves too.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.lib import files, stage
from stages.lib.errors import UserError
from stages.lib.render import numbers, page, table
from stages.lib.render.chart import Chart, Line, Point
from stages.lib.render.page import Block, Head, Notes, Section
from stages.lib.render.table import Cell, Interval, Table
from stages.lib.results import differences
from stages.lib.results.curves import tokens_before
from stages.lib.results.differences import INTERVAL, LEVEL, TaskDifference, shown_p
from stages.lib.results.scores import INDEPENDENT, ScoreRow, rows_of, shown_metrics
from stages.lib.scoring import aggregations
from stages.lib.scoring.tasks import local_tasks
from tools.compare import models

MARKS = {"better": "\u25b2 better", "worse": "\u25bc worse"}
"""Verdicts that are found without reading; others are their words."""

COLUMNS = (
    *("kind", "suite", "task", "metric", "run", "step", "tokens", "value", "stderr", "n"),
    *("reference", "reference_value", "reference_stderr", "difference", "low", "high", "p", "p_holm", "paired"),
    "verdict",
)
"""kind is difference or score. n is the number of documents: of a difference, those that both models were scored on."""

METHOD = (
    "Differences are those from the first model, of the main metric of each task.",
    "With per-sample logs of both models a difference is paired over the documents that both were scored on. p is that "
    "of a paired randomization test; after Holm's correction for the tasks of the two models, a difference is "
    f"significant below {LEVEL}. Its {INTERVAL:.0%} interval is a bootstrap over documents ({aggregations.RESAMPLES:,} "
    "resamples), and is not corrected.",
    "Without the logs, or for a metric that is not a sum over documents, the two standard errors count as independent, "
    f"which is cautious: a difference is significant above {INDEPENDENT:g} of their combined size.",
    "Where other runs differ from one of the two by their seed alone, means over these runs are compared, and the "
    "larger of two errors counts: that over documents, or that over seeds, by Student's t with the deviation of the "
    "runs. Its p is corrected by Holm, too.",
)
DRAWN = (
    "A filled dot is a significant difference, a hollow one is not; a dashed interval is unpaired. Better is to the "
    "right. Intervals of one metric have one scale."
)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """The differences of one model from the reference. `at`: its run, step and tokens."""

    reference: str
    other: str
    at: ScoreRow
    differences: list[TaskDifference]
    notes: list[str]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The comparison of the first model, the reference, with each other one. `points`: scores of all milestones."""

    names: list[str]
    overview: Table
    recipes: Table
    pairs: list[Pair]
    points: list[ScoreRow]

    @property
    def title(self) -> str:
        """The names of the models."""
        return f"Comparison of {', '.join(self.names[1:])} with {self.names[0]}"


def sections(comparison: Comparison) -> list[Section]:
    """Return the sections of the page, and of the Markdown, which leaves out charts."""
    recipes = comparison.recipes if comparison.recipes.rows else Notes(lines=["The recipes are equal."])
    made = [Section(title=f"{pair.other} against {pair.reference}", blocks=[*_pair(pair)]) for pair in comparison.pairs]
    made.append(Section(title="Models", blocks=[comparison.overview]))
    made.append(Section(title="Differences of recipe and data", blocks=[recipes]))
    if charts := [*_charts(comparison.points)]:
        made.append(Section(title="Scores against training tokens", blocks=charts))
    return [*made, Section(title="Method", blocks=[Notes(lines=METHOD)])]


def _pair(pair: Pair) -> Iterator[Block]:
    verdicts = [difference.verdict for difference in pair.differences]
    if not verdicts:
        yield Notes(lines=["No task can be compared.", *pair.notes])
        return
    counts = f"better in {verdicts.count('better')} and worse in {verdicts.count('worse')} of {len(verdicts)} tasks"
    yield Notes(lines=[f"{pair.other} is significantly {counts}."])
    edges: dict[str, float] = {}
    for difference in pair.differences:
        bounds = [abs(bound) for bound in (difference.low, difference.high) if bound is not None]
        edges[difference.metric] = max([edges.get(difference.metric, 0.0), *bounds])
    yield Table(
        titles=["task", pair.reference, pair.other, "difference, 95% interval", "p, not corrected", "verdict"],
        rows=[_row(difference, edges[difference.metric]) for difference in pair.differences],
        numeric=range(1, 5),
        caption=DRAWN,
    )
    if pair.notes:
        yield Notes(lines=pair.notes)


def _row(row: TaskDifference, edge: float) -> list[str | Cell]:
    direction, sign = ("lower", -1) if row.lower_is_better else ("higher", 1)
    cell = Cell(text=numbers.UNKNOWN if row.value is None else f"{row.value:+z.4f}")
    if row.value is not None and row.low is not None and row.high is not None:
        low, high = sorted((sign * row.low, sign * row.high))
        look = {"filled": row.significant, "dashed": row.documents is None}
        drawn = Interval(low=low, value=sign * row.value, high=high, edge=edge, **look) if edge else None
        cell = Cell(text=cell.text, note=f"{row.low:+z.4f} to {row.high:+z.4f}", interval=drawn)
    return [
        Cell(text=row.task, code=True, note=f"{row.suite}: {row.metric}, {direction} is better"),
        *(table.score(score["value"], score["stderr"]) for score in (row.reference, row.other)),
        cell,
        shown_p(row.p),
        Cell(text=MARKS.get(row.verdict, row.verdict), note=row.rule, strong=row.significant),
    ]


def _charts(points: Sequence[ScoreRow]) -> Iterator[Chart]:
    """Yield a chart per task with two milestones of a run or more."""
    by_task: dict[tuple[str, str, str], dict[str, list[Point]]] = {}
    for row in points:
        if row["value"] is not None:
            lines = by_task.setdefault((row["suite"], row["task"], row["metric"]), {})
            lines.setdefault(row["run"], []).append((row["tokens"], row["value"], row["stderr"]))
    for (suite, task, metric), runs in by_task.items():
        if max(map(len, runs.values())) > 1:
            chance = local_tasks.chance_of(task, metric)
            yield Chart(
                title=f"{suite}/{task}",
                y_label=metric,
                lines=[Line(label=run, group=run, part=run, points=of_run) for run, of_run in runs.items()],
                levels={} if chance is None else {f"chance ({chance:g})": chance},
            )


def csv(comparison: Comparison) -> str:
    """Return differences and scores as CSV; an unknown value is empty."""
    rows: list[dict[str, Any]] = []
    for pair in comparison.pairs:
        for row in pair.differences:
            cells = {"kind": "difference", **pair.at, **row.other, "n": row.documents, "verdict": row.verdict}
            cells |= {"reference": pair.reference, "reference_value": row.reference["value"], "difference": row.value}
            cells |= {"reference_stderr": row.reference["stderr"], "low": row.low, "high": row.high, "p": row.p}
            paired = "" if row.value is None else str(row.documents is not None).lower()
            rows.append(cells | {"p_holm": row.corrected_p, "paired": paired})
    rows += [{"kind": "score", **row} for row in comparison.points]
    file = io.StringIO()
    files.write_csv(file, COLUMNS, rows)
    return file.getvalue()


def compare(directory: Path, texts: Sequence[str], average: int | None = None) -> Comparison:
    """Compare the models that `texts` name, RUN or RUN:STEP, below the results `directory`; the first is the reference.

    `average`: the number of milestones, up to the named ones, whose scores are averaged.

    Raises UserError if one does not exist, or a manifest or log is damaged.
    """
    results, keys = models.find(directory, texts)
    scores, problems = (results, []) if average is None else models.with_means(results, keys, average)
    compared = [models.compared(scores, key) for key in keys]
    reference, *others = compared
    known = differences.Differences(scores)
    pairs = []
    for other in others:
        replicas = known.replicas((reference.run, reference.step), (other.run, other.step))
        rows, notes = differences.compare(reference.evaluations, other.evaluations, replicas, thorough=True)
        at = {"run": other.run, "step": other.step, "tokens": other.tokens}
        notes = [*models.notes(reference, other), *notes, *models.notes_on_seeds(rows)]
        notes += [] if average is None else [f"Scores are means over {average} milestones up to each step.", *problems]
        pairs.append(Pair(reference=reference.name, other=other.name, at=at, differences=rows, notes=notes))
    before, points = tokens_before(results), []
    named = {model.run for model in compared}
    for (run_name, step, suite), evaluation in results.evaluations.items():
        if run_name not in named:  # it differs from one of them by its seed alone
            continue
        at = {"run": run_name, "step": step, "tokens": evaluation.identity["tokens"] + before[run_name]}
        shown = {task: shown_metrics(metrics) for task, metrics in evaluation.identity["results"].items()}
        points += [at | row for row in rows_of(evaluation, suite) if row["metric"] in shown[row["task"]]]
    points.sort(key=lambda row: tuple(row[key] for key in ("suite", "task", "metric", "run", "step")))
    overview, recipes = models.tables(compared, directory)
    names = [model.name for model in compared]
    return Comparison(names=names, overview=overview, recipes=recipes, pairs=pairs, points=points)


def run(arguments: argparse.Namespace) -> None:
    """Compare the models, and write the files that are named."""
    paths = {name: path for name in ("markdown", "csv", "html") if (path := getattr(arguments, name)) is not None}
    for name, path in paths.items():
        files.check_output(path, f"--{name} ")
    if arguments.average is not None and arguments.average < 2:
        raise UserError(f"--average must be at least 2, got {arguments.average}")
    if len({path.absolute() for path in paths.values()}) < len(paths):
        given = ", ".join(f"--{name}" for name in paths)
        raise UserError(f"{given} must name different files")
    compared = compare(arguments.results, arguments.models, arguments.average)
    shown, title = sections(compared), compared.title
    texts = {"markdown": page.markdown(title, shown), "csv": csv(compared)}
    for name, path in paths.items():
        if name == "html":
            page.write(path, shown, sorted({row["run"] for row in compared.points}), Head(title=title))
        else:
            with files.atomic(path, "w") as file:
                file.write(texts[name])
    if "markdown" not in paths:
        print(texts["markdown"], end="")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool; return its exit code."""
    parser = stage.parser("tools.compare", __doc__)
    parser.add_argument("models", nargs="+", metavar="RUN[:STEP]", help="a model; the first is the reference")
    parser.add_argument("--results", type=Path, default=Path("results"), metavar="DIR", help="default: results")
    parser.add_argument("--average", type=int, metavar="K", help="average the scores of the last K milestones")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write Markdown here, and do not print it")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write differences and the scores of all milestones")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write tables and curves as one page")
    return stage.execute(parser, run, argv)


if __name__ == "__main__":
    stage.leave(main())
