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
from collections.abc import Sequence
from pathlib import Path

from stages.lib import files, stage
from stages.lib.errors import UserError
from stages.lib.pages import comparison
from stages.lib.pages.comparison import Comparison, Pair
from stages.lib.render import page
from stages.lib.render.page import Head
from stages.lib.results import differences
from stages.lib.results.curves import tokens_before
from stages.lib.results.scores import rows_of, shown_metrics
from tools.compare import models


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
    sections, title = comparison.sections(compared), compared.title
    texts = {"markdown": page.markdown(title, sections), "csv": comparison.csv(compared)}
    for name, path in paths.items():
        if name == "html":
            page.write(path, sections, sorted({row["run"] for row in compared.points}), Head(title=title))
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
