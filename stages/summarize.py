"""Gather scores and curves of all runs: a table, three figures, and what a person reads at the end.

    python -m stages.summarize --models results/runs/*/models/*.json --exports results/runs/*/export/*/manifest.json \\
        --evaluations results/runs/*/eval/*/*.json --scores results/scores.csv --figures results/figures \\
        --text results/summary.txt --output results/summary.json

--expect holds what the config asks for; a result that was made otherwise is refused, what is missing is listed. Columns
of the table: run,step,tokens,task,metric,value,stderr.
"""

import csv
import json
import os
import sys
from collections import Counter, defaultdict
from pathlib import Path

from stages.lib import files, manifest, stage
from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.report import figures
from stages.lib.report.results import Results, check_code, check_recipes
from stages.lib.report.summary_text import ACCURACY, BITS, CHANCE, CHOICE, COMPLETION_BITS, COMPLETION_CHOICE, Report
from stages.lib.run_directory import history, journal

COLUMNS = ("run", "step", "tokens", "task", "metric", "value", "stderr")


def run(arguments):
    """Check, gather, and write table, figures, text and manifest."""
    clock = manifest.Clock(arguments.code)
    expect = read_expect(arguments.expect)
    results = Results(arguments.models, arguments.exports, arguments.evaluations)
    results.check_chain()
    warnings = []
    if expect:
        check_recipes(results, expect)
        warnings = check_code(results, expect.get("code", {}))
    missing = results.missing(expect)
    for name in missing:
        logger.warning("missing: %s", name)
    rows = score_rows(results)
    before = tokens_before(results)
    curves = curves_of(results, before)
    write_scores(arguments.scores, rows)
    after = [row | {"tokens": row["tokens"] + before[row["run"]]} for row in rows]
    drawn = draw_figures(arguments.figures, after, curves)
    text = Report(results, rows, missing, [*troubles_of(results), *warnings], arguments).text()
    with files.atomic(arguments.text, "w") as file:
        file.write(text)
    write_manifest(arguments, clock, results, missing, [arguments.scores, *drawn, arguments.text])


def read_expect(text):
    """The data of --expect: JSON, or a file that holds it; {} for nothing."""
    if not text.strip().startswith("{"):
        return files.read_json(text)
    try:
        return json.loads(text)
    except ValueError:
        raise UserError("--expect must be JSON, or a file that holds it") from None


def score_rows(results):
    """All scores, sorted: dictionaries of COLUMNS. A task that stands in several suites is named SUITE/TASK."""
    tasks = Counter()
    for (run_name, step, _), evaluation in results.evaluations.items():
        tasks.update((run_name, step, task) for task in evaluation.identity["results"])
    rows = []
    for (run_name, step, suite), evaluation in results.evaluations.items():
        for task, metrics in evaluation.identity["results"].items():
            name = task if tasks[run_name, step, task] == 1 else f"{suite}/{task}"
            at = {"run": run_name, "step": step, "tokens": evaluation.identity["tokens"], "task": name}
            rows += [{**at, "metric": metric, **score} for metric, score in metrics.items()]
    return sorted(rows, key=_row_order)


def _row_order(row):
    return row["run"], row["step"], row["task"], row["metric"]


def write_scores(path, rows):
    """Write the table; what is not known is empty."""
    with files.atomic(path, "w") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def tokens_before(results):
    """How many tokens each run's model was trained on before the run itself: in figures a tuned run begins there."""
    return {run_name: _tokens_before(results, run_name) for run_name in results.runs()}


def _tokens_before(results, run_name):
    origin = results.tuned_from(run_name)
    return results.models[origin].identity["tokens"] + _tokens_before(results, origin[0]) if origin else 0


def curves_of(results, before):
    """The curves of each run's newest model: {run: {"train": points, "validation": {source: points}}}.

    `before`: by how many tokens each run's points are moved. A step that was taken twice is the later one; one that was
    skipped changed no weight, and has no point.
    """
    curves = {}
    for run_name, directory in run_directories(results).items():
        train, validation, moved = {}, defaultdict(dict), before[run_name]
        for entry in history.entries(directory, journal.read(directory / "events.jsonl")):
            if "validation" in entry:
                for source, score in entry["validation"].items():
                    validation[source][entry["step"]] = (entry["tokens"] + moved, score["loss"], None)
            elif history.is_good(entry):
                train[entry["step"]] = (entry["tokens"] + moved, entry["loss"], None)
            else:
                train.pop(entry["step"], None)
        if not train:
            logger.warning("missing: %s, so the curves of run %s are not drawn", directory / "metrics.jsonl", run_name)
        ordered = {source: _in_order(points) for source, points in validation.items()}
        curves[run_name] = {"train": _in_order(train), "validation": ordered}
    return curves


def run_directories(results):
    """The run directory of each run's newest model."""
    newest = {run_name: made for (run_name, _), made in results.models.items()}  # sorted by step: the last one stays
    return {name: made.directory / made.record["run_directory"] for name, made in newest.items()}


def troubles_of(results):
    """A sentence on each run that skipped steps, went back or hung."""
    sentences = []
    for run_name, directory in run_directories(results).items():
        if found := history.troubles(journal.read(directory / "events.jsonl")):
            path = Path(os.path.normpath(directory / "events.jsonl"))
            sentences.append(f"run {run_name}: {', '.join(found)}; {path} says when")
    return sentences


def _in_order(points):
    return [points[step] for step in sorted(points)]


def draw_figures(directory, rows, curves):
    """Draw the three figures; returns their paths."""
    loss = []
    for run_name, curve in curves.items():
        if curve["train"]:
            loss.append(_line(f"{run_name}, training", run_name, "training", curve["train"], marked=False))
        for source, points in sorted(curve["validation"].items()):
            loss.append(_line(f"{run_name}, validation {source}", run_name, source, points))
    bits = _score_lines(rows, BITS, _is_bits)
    accuracy = [line for metric in ("acc", ACCURACY) for line in _score_lines(rows, metric, lambda task: True)]
    has_choice = any(row["task"].rpartition("/")[2] in (CHOICE, COMPLETION_CHOICE) for row in rows)
    paths = [directory / name for name in ("loss.svg", "bits_per_byte.svg", "accuracy.svg")]
    figures.draw(paths[0], "Loss", "nats per token", loss)
    figures.draw(paths[1], "Validation text", "bits per byte", bits)
    figures.draw(paths[2], "Accuracy", "accuracy", accuracy, CHANCE if has_choice else None)
    return paths


def _is_bits(task):
    name = task.rpartition("/")[2]
    return name.startswith(BITS) or name == COMPLETION_BITS


def _line(label, group, part, points, marked=True):
    return {"label": label, "group": group, "part": part, "points": points, "marked": marked}


def _score_lines(rows, metric, is_wanted):
    points = defaultdict(list)
    for row in rows:
        if row["metric"] == metric and is_wanted(row["task"]) and row["value"] is not None:
            points[row["run"], row["task"]].append((row["tokens"], row["value"], row["stderr"]))
    return [_line(f"{run_name}, {task}", run_name, task, found) for (run_name, task), found in points.items()]


def write_manifest(arguments, clock, results, missing, outputs):
    """Write the summary's manifest, last; paths in it start from its directory."""
    home = arguments.output.parent
    identity = {
        "recipe": {},
        "inputs": {_relative(made.path, home): made.digest for made in results.all()},
        "missing": missing,
        "outputs": {_relative(path, home): manifest.describe(path) for path in outputs},
    }
    manifest.write(arguments.output, identity, clock.record())


def _relative(path, home):
    return Path(os.path.relpath(path, home)).as_posix()


def main(argv=None):
    """Run the stage; returns its exit code."""
    parser = stage.parser("stages.summarize", __doc__)
    for name in ("models", "exports", "evaluations"):
        parser.add_argument(f"--{name}", type=Path, nargs="*", default=[], metavar="MANIFEST", help=f"all {name}")
    parser.add_argument("--expect", default="{}", metavar="JSON|FILE", help="what the config asks for")
    parser.add_argument("--scores", type=Path, required=True, metavar="FILE", help="the table of scores to write")
    parser.add_argument("--figures", type=Path, required=True, metavar="DIR", help="where the figures are written")
    parser.add_argument("--text", type=Path, metavar="FILE", help="the text to write (default: OUTPUT with .txt)")
    parser.add_argument("--output", type=Path, required=True, metavar="MANIFEST", help="the manifest to write")
    return stage.execute(parser, _run_with_defaults, argv)


def _run_with_defaults(arguments):
    arguments.text = arguments.text or arguments.output.with_suffix(".txt")
    run(arguments)


if __name__ == "__main__":
    sys.exit(main())
