"""Compare trained models: differences of recipe, paired differences of scores, curves over training tokens.

    python -m tools.compare base wide                       # the newest scored milestone of each run
    python -m tools.compare base:300 base:1000 wide:1000 --html comparison.html --csv comparison.csv

The first model is the reference. Scores come from results/runs/RUN/eval; a task's difference is paired over the
documents in the logs of both models, has a bootstrap interval and a p-value that is corrected for the number of tasks.
Markdown is printed unless --markdown names a file for it. The HTML file needs no other file, and has the curves too.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from stages.lib import files, stage
from stages.lib.errors import UserError
from tools.compare import comparison_report, csv_table, html_page, markdown

OUTPUTS = {"markdown": markdown.text, "csv": csv_table.text, "html": html_page.text}
"""The options that name files, and the functions that make their texts."""


def run(arguments: argparse.Namespace) -> None:
    """Compare the models, and write the files that are named."""
    paths = {name: path for name in OUTPUTS if (path := getattr(arguments, name)) is not None}
    for name, path in paths.items():
        files.check_output(path, f"--{name} ")
    if len({path.absolute() for path in paths.values()}) < len(paths):
        given = ", ".join(f"--{name}" for name in paths)
        raise UserError(f"{given} must name different files")
    report = comparison_report.compare(arguments.results, arguments.models)
    texts = {name: OUTPUTS[name](report) for name in paths}  # before the first file is written
    for name, path in paths.items():
        with files.atomic(path, "w") as file:
            file.write(texts[name])
    if "markdown" not in paths:
        print(markdown.text(report), end="")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool; return its exit code."""
    parser = stage.parser("tools.compare", __doc__)
    parser.add_argument("models", nargs="+", metavar="RUN[:STEP]", help="a model; the first is the reference")
    parser.add_argument("--results", type=Path, default=Path("results"), metavar="DIR", help="default: results")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write Markdown here, and do not print it")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write differences and the scores of all milestones")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write tables and curves as one page")
    return stage.execute(parser, run, argv)


if __name__ == "__main__":
    stage.leave(main())
