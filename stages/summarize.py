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
Its last rows are scores to compare with: of `baseline NAME`, and of `trivial READER`, a rule without a model.
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
from stages.lib.report import run_table_text, so_far, summary_figures
from stages.lib.report.curves import logs_of, read_curves, tokens_before, training_problems
from stages.lib.report.expected_recipes import check_code, check_recipes
from stages.lib.report.expert_load import load_problems
from stages.lib.report.references import reference_rows
from stages.lib.report.results import Results
from stages.lib.report.run_table import RunTable, run_tables
from stages.lib.report.scores import ScoreRow, score_rows, write_scores
from stages.lib.report.summary_text import SummaryText
from stages.lib.report_page import page, provenance
from stages.lib.report_page.inputs import PageInputs, read_corpora, read_lists, read_plan
from stages.lib.scaling_law import outcome


def read_expected(text: str) -> dict[str, Any]:
    """Read the data of --expect: JSON, or a file that holds it."""
    if not text.strip().startswith("{"):
        return files.read_json_object(text)
    try:
        return files.parse_json(text)
    except ValueError as error:
        raise UserError(f"--expect is not valid JSON: {error}") from None


def check(results: Results, expected: dict[str, Any]) -> list[str]:
    """Raise UserError if results do not belong together or to the config; returns warnings on their code."""
    results.check_chain()
    if not expected:
        return []
    check_recipes(results, expected)
    return check_code(results, expected.get("code", {}))


def keys_of(tables: Sequence[RunTable]) -> list[str]:
    """Return the keys in which runs differ, each once."""
    return list(dict.fromkeys(key for table in tables for key in table.keys))


def with_keys(rows: Sequence[ScoreRow], tables: Sequence[RunTable]) -> list[ScoreRow]:
    """Return score rows with the values of their run's keys."""
    values = {row.runs[0]: row.values for table in tables for row in table.rows}
    return [{**values.get(row["run"], {}), **row} for row in rows]


def write_manifest(
    arguments: argparse.Namespace,
    clock: manifest.Clock,
    made: Sequence[Manifest],
    missing: Sequence[str],
    outputs: Sequence[Path],
    pages: Sequence[Path],
    logs: Sequence[Path],
    parts: Sequence[Manifest],
) -> None:
    """Write the summary's manifest, last; its paths are relative to its directory.

    Its record has the pages, which show times that may differ between two equal results, and all else that they show:
    the plan, the logs of the trainings, and the records of the manifests.
    """
    home = arguments.output.parent
    identity = {
        "recipe": {},
        "inputs": {manifest.relative(one.path, home): one.digest for one in made},
        "missing": missing,
        "outputs": manifest.described(outputs, home),
    }
    record = clock.record(
        pages=manifest.described(pages, home),
        files={} if arguments.plan is None else manifest.described([arguments.plan], home),
        logs=manifest.described(logs, home),
        manifests={manifest.relative(one.path, home): one.sha256 for one in [*made, *parts]},
    )
    manifest.write(arguments.output, arguments.stage_name, identity, record)


def run(arguments: argparse.Namespace) -> None:
    """Check the results, and write table, figures, text and manifest."""
    clock = manifest.Clock(arguments.code)
    text = arguments.text or arguments.output.with_suffix(".txt")
    arguments.page = arguments.page or arguments.output.with_name("card.html")
    for path in (arguments.output, arguments.scores, text, arguments.page):
        files.clear_leftovers(path)
    for directory in (arguments.figures, arguments.pages):
        if directory is not None:
            files.clear_leftovers_in(directory)
    expected = read_expected(arguments.expect)
    given = (arguments.models, arguments.exports, arguments.evaluations, arguments.baselines, arguments.contamination)
    results = Results(*given)
    predictions = [manifest.read(path, "predict") for path in arguments.ladders if path.exists()]
    warnings = check(results, expected)
    missing = results.missing(expected)
    for name in missing:
        logger.warning("missing: %s", name)
    rows, references = score_rows(results), reference_rows(results)
    before = tokens_before(results)
    curves = read_curves(results, before)
    rungs = {name for prediction in predictions for name in prediction.identity["models"]}
    compared = {name for name, _ in results.models} - rungs
    tables = run_tables(results, rows, expected, compared)
    write_scores(arguments.scores, [*with_keys(rows, tables), *references], keys_of(tables))
    moved = [row | {"tokens": row["tokens"] + before[row["run"]]} for row in rows]
    figures = summary_figures.summary_figures(moved, references, curves)
    made = [arguments.scores, *summary_figures.draw(arguments.figures, figures)]
    warnings = [*training_problems(results), *load_problems(results), *warnings]
    predicted = outcome.text(predictions, results.models)
    inputs = PageInputs(
        results=results,
        rows=rows,
        references=references,
        curves=curves,
        figures=figures,
        missing=missing,
        warnings=warnings,
        corpora=read_corpora(arguments.corpora),
        lists=read_lists(arguments.lists),
        tables=tables,
        sweeps={name: run_tables(results, rows, expected, runs) for name, runs in expected.get("sweeps", {}).items()},
        predictions=predictions,
        plan=read_plan(arguments.plan),
        directory=arguments.output.parent,
    )
    pages = write_pages(arguments, inputs)
    lines = [line for table in tables for line in [*run_table_text.lines_of(table, arguments.scores.name), ""]]
    places = [arguments.page, arguments.scores, arguments.figures]
    summary = SummaryText(results, rows, references, missing, warnings, places, lines, predicted)
    with files.atomic(text, "w") as file:
        file.write(summary.text())
    parts = [part for corpus in inputs.corpora.values() for part in provenance.parts_of(corpus)]
    read = [*results.all(), *predictions, *inputs.corpora.values(), *inputs.lists.values()]
    write_manifest(arguments, clock, read, missing, [*made, text], pages, logs_of(results), parts)


def write_pages(arguments: argparse.Namespace, inputs: PageInputs) -> list[Path]:
    """Write the pages of the report; returns their paths."""
    sections, runs = page.sections(inputs), inputs.results.runs()
    started = [made.record["started"] for made in inputs.results.all() if "started" in made.record]
    head = page.Head(config=arguments.config, command=arguments.made_by, date=max(started, default="")[:10])
    page.write_card(arguments.page, sections, runs, head)
    return [arguments.page, *(page.write_categories(arguments.pages, sections, runs, head) if arguments.pages else [])]


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
    return stage.execute(parser, run, so_far.add_found(parser, sys.argv[1:] if argv is None else argv))


if __name__ == "__main__":
    stage.leave(main())
