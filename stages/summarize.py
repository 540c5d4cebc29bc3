"""Gather the scores and curves of all runs: a table, figures, a summary as text, and the report as HTML pages.

    python -m stages.summarize --models results/runs/*/models/*.json --exports results/runs/*/export/*/manifest.json \\
        --evaluations results/runs/*/eval/*/*.json --scores results/scores.csv --figures results/figures \\
        --text results/summary.txt --output results/summary.json

--page is the report as one page that needs no other file, --pages a directory of pages for Snakemake's report, one per
category. --corpora and --lists, the manifests of stages.index and stages.list, add the data and its provenance to them.

All that exists, while trainings run or after a failed job, into results/so_far:

    python -m stages.summarize --results results

--expect holds the recipes and milestones of the config: a result of another recipe is refused, a missing result is
listed. Columns of the table: run,step,tokens,task,metric,value,stderr,n, and of tasks whose items were looked for in
training text contaminated (the share that was found), clean, clean_stderr and clean_n (the score over the other items).
Its last rows are scores to compare with: of `baseline NAME`, and of `trivial READER`, a baseline without a model.
Of several runs, further columns have the keys in which their recipes differ.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stages.lib import files, manifest, stage
from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.manifest import Manifest
from stages.lib.manifest_types import Record, SummaryIdentity
from stages.lib.pages import provenance, report, summary
from stages.lib.pages.inputs import ReportInputs, read_classifiers, read_corpora, read_lists, read_plan, summary_charts
from stages.lib.render import chart
from stages.lib.results import averages
from stages.lib.results.curves import logs_of, read_curves, tokens_before
from stages.lib.results.differences import Differences
from stages.lib.results.manifests import Results, check_code, check_recipes
from stages.lib.results.run_tables import run_tables
from stages.lib.results.scores import reference_rows, score_rows, write_scores
from stages.lib.scaling_law import outcome

SO_FAR = "so_far"
FOUND = {
    "models": "runs/*/models/*.json",
    "exports": "runs/*/export/*/manifest.json",
    "evaluations": "runs/*/eval/*/*.json",
    "baselines": "baselines/*/*/*.json",
    "contamination": "contamination/*/*.json",
    "ladders": "ladders/*.json",
    "corpora": "tokens/*/manifest.json",
    "lists": "sources/*/list.json",
}
OUTPUTS = {"scores": "scores.csv", "figures": "figures", "output": "summary.json"}


def add_found(parser: argparse.ArgumentParser, argv: Sequence[str]) -> list[str]:
    """Return `argv` with the manifests below its --results, and outputs in DIR/so_far; `argv` itself without one.

    Options that `argv` has too take precedence. Exits with the parser's error if DIR is not a directory.
    """
    own = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    own.add_argument("--results", type=Path)
    results = own.parse_known_args(argv)[0].results
    if results is None:
        return list(argv)
    if not results.is_dir():
        parser.error(f"--results must be a directory, got {results}")
    found: list[str] = []
    for name, pattern in FOUND.items():
        paths = sorted(str(path) for path in results.glob(pattern) if not path.name.startswith("."))
        found += [f"--{name}", *paths] if paths else []
    found += ["--plan", str(results / "plan.json")]
    for name, file in OUTPUTS.items():
        found += [f"--{name}", str(results / SO_FAR / file)]
    return [*found, *argv]


def read_expected(text: str) -> dict[str, Any]:
    """Read the data of --expect: JSON, or a file that holds it."""
    if not text.strip().startswith("{"):
        return files.read_json_object(text)
    try:
        return files.parse_json(text)
    except ValueError as error:
        raise UserError(f"--expect is not valid JSON: {error}") from None


def run(arguments: argparse.Namespace) -> None:
    """Check the results, and write table, figures, text, pages and, last, the manifest."""
    clock = manifest.Clock(arguments.code)
    text = arguments.text or arguments.output.with_suffix(".txt")
    card = arguments.page or arguments.output.with_name("card.html")
    for path in (arguments.output, arguments.scores, text, card):
        files.clear_leftovers(path)
    for directory in (arguments.figures, arguments.pages):
        if directory is not None:
            files.clear_leftovers_in(directory)
    expected = read_expected(arguments.expect)
    paths = (arguments.models, arguments.exports, arguments.evaluations, arguments.baselines, arguments.contamination)
    results = Results(*paths)
    predictions = [manifest.read(path, "predict") for path in arguments.ladders if path.exists()]
    results.check_chain()
    if expected:
        check_recipes(results, expected)
    code_warnings = check_code(results, expected.get("code", {}))
    missing = results.missing(expected)
    for name in missing:
        logger.warning("missing: %s", name)
    with_means, not_averaged = averages.of_last_milestones(results, expected.get("runs", {}))
    rows, references = score_rows(results), reference_rows(results)
    last_rows = rows if with_means is results else score_rows(with_means)
    before = tokens_before(results)
    curves = read_curves(results, before)
    rungs = {name for prediction in predictions for name in prediction.identity["models"]}
    tables = run_tables(results, last_rows, expected, {name for name, _ in results.models} - rungs)
    moved = [row | {"tokens": row["tokens"] + before[row["run"]]} for row in rows]
    lists = read_lists(path for path in arguments.lists if path.exists())
    inputs = ReportInputs(
        results=results,
        rows=rows,
        last_rows=last_rows,
        averages=averages.counts_of(with_means),
        references=references,
        curves=curves,
        charts=summary_charts(moved, references, curves),
        differences=Differences(with_means),
        missing=missing,
        warnings=[
            *(problem for of_run in curves.values() for problem in of_run.problems),
            *code_warnings,
            *not_averaged,
        ],
        corpora=read_corpora(arguments.corpora),
        lists=lists,
        classifiers=read_classifiers(lists),
        tables=tables,
        sweeps={
            name: run_tables(results, last_rows, expected, runs) for name, runs in expected.get("sweeps", {}).items()
        },
        predictions=predictions,
        plan=read_plan(arguments.plan),
        directory=arguments.output.parent,
    )
    keys = list(dict.fromkeys(key for table in tables for key in table.keys))
    values = {row.runs[0]: row.values for table in tables for row in table.rows}
    of_runs = [{**values.get(row["run"], {}), **row} for row in rows]
    write_scores(arguments.scores, [*of_runs, *averages.rows_of_means(with_means), *references], keys)
    figures = [arguments.figures / f"{name}.svg" for name in inputs.charts]
    for path, drawn in zip(figures, inputs.charts.values(), strict=True):
        chart.draw(path, drawn)
    pages = report.write(inputs, card, arguments.pages, arguments.config, arguments.made_by)
    places = [card, arguments.scores, arguments.figures]
    with files.atomic(text, "w") as file:
        file.write(summary.text(inputs, places, outcome.text(predictions, results.models)))
    home = arguments.output.parent
    parts = [part for corpus in inputs.corpora.values() for part in provenance.parts_of(corpus)]
    manifests: list[Manifest] = [*results.all(), *predictions, *inputs.corpora.values(), *inputs.lists.values()]
    identity: SummaryIdentity = {
        "recipe": {},
        "inputs": {manifest.relative(one.path, home): one.digest for one in manifests},
        "missing": missing,
        "outputs": manifest.described([arguments.scores, *figures, text], home),
    }
    # the pages show times that may differ between two equal results, so they and what they show are no identity
    record: Record = {
        **clock.record(),
        "pages": manifest.described(pages, home),
        "files": {} if arguments.plan is None else manifest.described([arguments.plan], home),
        "logs": manifest.described(logs_of(results), home),
        "manifests": {manifest.relative(one.path, home): one.sha256 for one in [*manifests, *parts]},
    }
    manifest.write(arguments.output, arguments.stage_name, identity, record)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the stage; returns its exit code."""
    parser = stage.parser("stages.summarize", __doc__)
    for name in ("models", "exports", "evaluations", "contamination", "corpora", "lists"):
        parser.add_argument(f"--{name}", type=Path, nargs="*", default=[], metavar="MANIFEST", help=f"all {name}")
    parser.add_argument("--baselines", type=Path, nargs="*", default=[], metavar="MANIFEST", help="scores of baselines")
    parser.add_argument("--ladders", type=Path, nargs="*", default=[], metavar="MANIFEST", help="predictions")
    parser.add_argument("--expect", default="{}", metavar="JSON|FILE", help="recipes and milestones of the config")
    parser.add_argument("--scores", type=Path, required=True, metavar="FILE", help="the table of scores to write")
    parser.add_argument("--figures", type=Path, required=True, metavar="DIR", help="the directory of the figures")
    parser.add_argument(
        "--page", type=Path, metavar="FILE", help="the page to write (default: card.html beside OUTPUT)"
    )
    parser.add_argument(
        "--pages", type=Path, metavar="DIR", help="the directory of a page per category (default: none)"
    )
    parser.add_argument("--config", default="", metavar="TEXT", help="names of the config files, for the pages")
    parser.add_argument("--made-by", default="", metavar="TEXT", help="the command of the workflow, for the pages")
    parser.add_argument("--plan", type=Path, metavar="FILE", help="the plan of the runs, if it exists (default: none)")
    parser.add_argument("--text", type=Path, metavar="FILE", help="the text to write (default: OUTPUT with .txt)")
    parser.add_argument("--output", type=Path, required=True, metavar="MANIFEST", help="the manifest to write")
    parser.add_argument("--results", type=Path, metavar="DIR", help="all that exists in DIR, into DIR/so_far")
    return stage.execute(parser, run, add_found(parser, sys.argv[1:] if argv is None else argv))


if __name__ == "__main__":
    stage.leave(main())
