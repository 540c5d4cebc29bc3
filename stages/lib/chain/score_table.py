"""The rows of scores.csv, compared with the evaluations that the summary was made from."""

from __future__ import annotations

import csv
from collections.abc import Container, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from stages.lib import files
from stages.lib.errors import UserError
from stages.lib.manifest import Manifest

COMPARED = ("value", "stderr", "n")
Key = tuple[str, str, str, str]
"""(run, step or "", task, metric), as the table has them"""

Known = dict[Key, list[tuple[Mapping[str, Any], Path]]]
"""{key: [(score, path of its evaluation)]}; a reference has one per corpus"""


def differences(table: Path, evaluations: Iterable[Manifest], unread: Container[tuple[str, str]] = ()) -> list[str]:
    """Return one sentence per row of a table that has another score than the evaluations.

    `unread`: (run, step) of evaluations that cannot be read; their links name them. Rows without a step (rules without
    a model) are held by the table's sha256 alone. Raises UserError if the table is no CSV with these columns.
    """
    known = scores_of(evaluations)
    found = []
    for line, row in _rows(table):
        key = (row["run"], row["step"], row["task"], row["metric"])
        given = {name: _number(row.get(name)) for name in COMPARED}
        if key not in known:
            if row["step"] and key[:2] not in unread:
                score = f"{row['task']} ({row['metric']}) of {row['run']} at step {row['step']}"
                found.append(f"{table} line {line} has {score}, which no evaluation has")
        elif all(_differing(known_score, given) for known_score, _ in known[key]):
            first, path = known[key][0]
            name = _differing(first, given) or ""
            found.append(f"{table} line {line}: {name} of {row['task']} is {row[name]}, and in {path} {first[name]}")
    return found


def scores_of(evaluations: Iterable[Manifest]) -> Known:
    """Return the scores of evaluations, of runs and of baselines, under each name that a table may give their task."""
    known: Known = {}
    for made in evaluations:
        suite, of_run = made.path.stem, "export" in made.identity
        place = made.path.absolute().parents
        run, step = (place[2].name, str(made.identity["step"])) if of_run else (f"baseline {place[1].name}", "")
        for task, metrics in made.identity["results"].items():
            for metric, score in metrics.items():
                for name in (task, f"{suite}/{task}"):
                    known.setdefault((run, step, name, metric), []).append((score, made.path))
    return known


def _rows(table: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield (number of the line, row). Raises UserError if the file is not a table of scores."""
    try:
        with open(table, encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            if not {"run", "step", "task", "metric", "value"} <= set(reader.fieldnames or ()):
                raise UserError(f"{table} must be a table with the columns run, step, task, metric and value")
            for row in reader:
                texts = {name: _plain(cell) for name, cell in row.items() if name is not None}
                yield reader.line_num, texts
    except (OSError, ValueError, csv.Error) as error:
        raise UserError(f"{table} cannot be read as a table of scores: {error}") from None


def _plain(cell: str) -> str:
    """Return a cell without the apostrophe that keeps spreadsheets from running it as a formula."""
    return cell[1:] if cell and cell[0] == "'" and cell[1:].startswith(files.FORMULAS) else cell


def _number(text: str | None) -> float | str | None:
    """Return a cell as a number; None if it is empty or missing, the text if it is no number."""
    try:
        return float(text) if text else None
    except ValueError:
        return text


def _differing(score: Mapping[str, Any], given: Mapping[str, float | str | None]) -> str | None:
    """Return the first column in which a row has another figure than a score; None if all agree."""
    return next((name for name in COMPARED if score.get(name) != given[name]), None)
