"""Everything that a manifest of each stage must agree with, besides its files and the digests of other manifests.

Each check yields Findings: sentences on what is wrong, or on what the manifests do not prove.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.lib import files, manifest
from stages.lib.errors import UserError
from stages.lib.huggingface import export_directory
from stages.lib.scaling_law import outcome
from stages.lib.scaling_law.rungs import weighted
from stages.lib.scoring import inputs as scoring_inputs
from stages.lib.scoring.tasks import local_tasks
from tools.verify import payload
from tools.verify.places import Link, Places

COMPARED = ("value", "stderr", "n")
ESCAPED = tuple(f"'{beginning}" for beginning in files.FORMULAS)
"""Beginnings of cells with an apostrophe, which keeps spreadsheets from running them as formulas."""

Key = tuple[str, str, str, str]
"""(run, step or "", task, metric), as the table has them"""

Known = dict[Key, list[tuple[Mapping[str, Any], Path]]]
"""{key: [(score, path of its evaluation)]}; a reference has one per corpus"""


def differences(
    table: Path, evaluations: Iterable[manifest.EvaluationManifest], unread: Container[tuple[str, str]] = ()
) -> list[str]:
    """Return one sentence per row of a table that has another score than the evaluations.

    `unread`: (run, step) of evaluations that cannot be read; their links name them. Rows without a step (rules without
    a model) are held by the table's sha256 alone. Raises UserError if the table is no CSV with these columns.
    """
    known = scores_of(evaluations)
    sentences = []
    for line, row in _rows(table):
        key = (row["run"], row["step"], row["task"], row["metric"])
        figures = {name: _number(row.get(name)) for name in COMPARED}
        if key not in known:
            if row["step"] and key[:2] not in unread:
                score = f"{row['task']} ({row['metric']}) of {row['run']} at step {row['step']}"
                sentences.append(f"{table} line {line} has {score}, which no evaluation has")
        elif all(_differing(known_score, figures) for known_score, _ in known[key]):
            first, path = known[key][0]
            name = _differing(first, figures) or ""
            sentences.append(
                f"{table} line {line}: {name} of {row['task']} is {row[name]}, and in {path} {first[name]}"
            )
    return sentences


def scores_of(evaluations: Iterable[manifest.EvaluationManifest]) -> Known:
    """Return the scores of evaluations, of runs and of baselines, under each name that a table may give their task."""
    known: Known = {}
    for result in evaluations:
        suite, of_run = result.path.stem, "export" in result.identity
        place = result.path.absolute().parents
        run, step = (place[2].name, str(result.identity["step"])) if of_run else (f"baseline {place[1].name}", "")
        for task, metrics in result.identity["results"].items():
            for metric, score in metrics.items():
                for name in (task, f"{suite}/{task}"):
                    known.setdefault((run, step, name, metric), []).append((score, result.path))
    return known


def _rows(table: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield (number of the line, row). Raises UserError if the file is not a table of scores."""
    try:
        with open(table, encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            if not {"run", "step", "task", "metric", "value"} <= set(reader.fieldnames or ()):
                raise UserError(f"{table} must be a table with the columns run, step, task, metric and value")
            for row in reader:
                cells = {name: cell or "" for name, cell in row.items() if name is not None}
                yield reader.line_num, {name: cell[cell.startswith(ESCAPED) :] for name, cell in cells.items()}
    except (OSError, ValueError, csv.Error) as error:
        raise UserError(f"{table} cannot be read as a table of scores: {error}") from None


def _number(text: str | None) -> float | str | None:
    """Return a cell as a number; None if it is empty or missing, the text if it is no number."""
    try:
        return float(text) if text else None
    except ValueError:
        return text


def _differing(score: Mapping[str, Any], given: Mapping[str, float | str | None]) -> str | None:
    """Return the first column in which a row has another figure than a score; None if all agree."""
    return next((name for name in COMPARED if score.get(name) != given[name]), None)


SCORES, REPORT = "scores.csv", "report.html"

RECORDED = {
    **dict.fromkeys(
        manifest.MODELS, ("logs", "its metrics.jsonl and events.jsonl: the manifest has no digest of them")
    ),
    "describe": ("manifests", "the losses and records in the card: the manifest has no digest of them"),
}
"""{stage: (key of a record that an older manifest does not have, what is not proven without it)}"""

UNPROVEN = {
    "list_items": "the items are those that lm-evaluation-harness read when they were listed",
    "find_contamination": "its rates: the search in the shards is not repeated",
    "predict": "its law: it is not fitted again",
}
"""{stage: what no manifest of it proves}"""


@dataclass(frozen=True)
class Finding:
    """A sentence. `wrong`: False if it only says what is not proven."""

    text: str
    wrong: bool = True


def findings(result: manifest.Manifest, places: Places) -> Iterator[Finding]:
    """Yield what is wrong with a manifest, and what it does not prove."""
    loaded, others = payload.strays_of(result)
    for path in loaded:
        yield Finding(f"{path} lies in the export, and {result.path} has no sha256 of it; move it elsewhere")
    if others:
        more = f" and {len(others) - 1} more files" if len(others) > 1 else ""
        yield Finding(f"{others[0]}{more}: beside its files, and without a digest", wrong=False)
    key, text = RECORDED.get(result.stage, ("", ""))
    if key and key not in result.record:
        yield Finding(text, wrong=False)
    if result.stage in CHECKS:
        try:
            yield from CHECKS[result.stage](result, places)
        except UserError as error:
            yield Finding(str(error))
    if result.stage in UNPROVEN:
        yield Finding(UNPROVEN[result.stage], wrong=False)


def _summary(result: manifest.SummaryManifest, places: Places) -> Iterator[Finding]:
    """Compare the rows of the table with the evaluations that can be read; others are named by their links."""
    evaluations, unread = [], set()
    for path in result.identity["inputs"]:
        try:
            other = places.read(result.directory / path)
        except UserError:
            run, _, step, _ = ("", "", "", *Path(path).parts)[-4:]
            unread.add((run, step.lstrip("0")))
            continue
        if other.stage == "evaluate":
            evaluations.append(other)
    if (result.directory / REPORT).exists():
        yield Finding(f"{result.directory / REPORT}: Snakemake makes it of the pages, after the summary", wrong=False)
    if "logs" not in result.record:
        text = (
            "the curves, the plan, and the records of other manifests in the pages: the summary has no digest of them"
        )
        yield Finding(text, wrong=False)
    table = result.directory / SCORES
    if table.exists():
        yield from map(Finding, differences(table, evaluations, unread))


def _evaluation(result: manifest.EvaluationManifest, places: Places) -> Iterator[Finding]:
    kept = scoring_inputs.kept_manifest(result.path)
    if kept.exists() and places.read(kept).digest != result.digest:
        yield Finding(f"{result.path} has other scores than {kept}, which was written with it")
    yield from _include(result, places)
    if "baseline" in result.identity:
        yield Finding("the files of the baseline: the manifest has their digest, and not their place", wrong=False)
    if "files" not in result.record and set(local_tasks.NAMES) & set(result.identity["recipe"].get("tasks", ())):
        yield Finding("the data of its local tasks: the manifest has no digest of them", wrong=False)
    foreign = [task for task in result.identity["recipe"].get("tasks", ()) if task not in local_tasks.NAMES]
    if foreign and "include" not in result.identity:
        names = ", ".join(foreign)
        yield Finding(f"the items of {names}: lm-evaluation-harness reads them, and only its version is kept", False)


def _include(result: manifest.Manifest, _: Places) -> Iterator[Finding]:
    """Compare the directory of the user's task files."""
    if "include" in result.identity:
        directory = Path(result.identity["recipe"]["include_path"])
        if not directory.is_dir():
            yield Finding(f"{directory} is missing, and {result.path} was made with its task files")
        elif scoring_inputs.digest_of_directory(directory) != result.identity["include"]:
            yield Finding(f"{directory} has other task files than {result.path} was made with")


def _export(result: manifest.ExportManifest, places: Places) -> Iterator[Finding]:
    parity = result.directory / scoring_inputs.PARITY
    if not parity.exists():
        yield Finding(f"{parity} is missing, which says that the export equals the model")
    elif files.read_json_object(parity).get("passed") is not True:
        yield Finding(f"{parity} does not say that the export equals the model")
    elif "files" not in result.record:
        yield Finding(f"the figures of {parity}: the manifest has no digest of it", wrong=False)
    card = result.directory / export_directory.CARD
    if card.exists() and not (result.directory / export_directory.CARD_MANIFEST).exists():
        yield Finding(f"{card}: no {export_directory.CARD_MANIFEST} has its digest", wrong=False)


def _tokenizer(result: manifest.TokenizerManifest, places: Places) -> Iterator[Finding]:
    if "taken" not in result.record:
        megabytes = result.record["sample_bytes"] / 1e6
        yield Finding(f"the sample of {megabytes:.1f} MB that it was trained on is not drawn again", wrong=False)
        return
    taken = result.record["taken"]
    path = Path(taken["path"])
    if not path.is_file():
        yield Finding(f"{path} is missing, and {result.path} was made from it")
    elif manifest.describe(path)["sha256"] != taken["sha256"]:
        yield Finding(f"{path} changed since {result.path} was made from it: its sha256 differs")


def _prediction(result: manifest.PredictionManifest, places: Places) -> Iterator[Finding]:
    """Compare the points of a ladder with its models, whose digests do not cover what validation measured."""
    digests, weights = result.identity["models"], result.identity["recipe"]["weights"]
    for point in result.identity["points"]:
        try:
            model = places.find(Link("model", digests[point["run"]]), result)
        except UserError:
            continue  # its link is named
        for name, words in outcome.NAMES.items():
            measured = weighted(model.record["validation"], weights, name, str(model.path))
            if measured != point[name]:
                yield Finding(f"{result.path} has a {words} of {point[name]}, and {model.path} has {measured}")


CHECKS: dict[str, Callable[[Any, Places], Iterator[Finding]]] = {
    "summarize": _summary,
    "evaluate": _evaluation,
    "convert": _export,
    "train_tokenizer": _tokenizer,
    "list_items": _include,
    "predict": _prediction,
}
