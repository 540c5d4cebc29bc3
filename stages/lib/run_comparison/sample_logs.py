"""The per-sample logs of evaluations: for each document of a task its hash and its metrics."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from stages.lib import manifest
from stages.lib.errors import UserError
from stages.lib.manifest import Manifest

SUFFIX = ".jsonl.gz"

KEYS = {"doc_id": int, "doc_hash": str, "filter": str, "metrics": dict}
"""The keys of a line that are read, and their types."""

Document = tuple[str, int]
"""(task, number of the document in it)"""

Sample = tuple[str, dict[str, Any]]
"""(hash of the document, {metric: value})"""


@dataclass(frozen=True)
class SampleLog:
    """The log of a task or of a group: samples by filter and document."""

    samples: dict[str, dict[Document, Sample]]

    def values(self, metric: str) -> dict[Document, tuple[str, Any]]:
        """Return {document: (its hash, value)} of a metric, given as METRIC or METRIC/FILTER; None for no value."""
        name, _, filtered = metric.partition("/")
        found = self.samples.get(filtered or "none", {})
        return {document: (digest, metrics.get(name)) for document, (digest, metrics) in found.items()}


def read(evaluation: Manifest, suite: str, task: str) -> SampleLog | None:
    """Read the log of a task, or those of a group's tasks; None if the evaluation has none, as those of older versions.

    The tasks of a group GROUP are those named GROUP_*, as of MMLU. Raises UserError if a log is missing, changed since
    the evaluation's manifest was written, or is not valid.
    """
    outputs = evaluation.identity.get("outputs", {})
    of_task = f"{suite}/samples/{task}"
    own = f"{of_task}{SUFFIX}"
    names = [own] if own in outputs else [name for name in outputs if name.startswith(f"{of_task}_")]
    samples: dict[str, dict[Document, Sample]] = {}
    for name in names:
        path = evaluation.directory / name
        manifest.check_content(path, outputs[name], evaluation.path)
        _read_into(samples, path)
    return SampleLog(samples) if names else None


def _read_into(samples: dict[str, dict[Document, Sample]], path: Path) -> None:
    task = path.name.removesuffix(SUFFIX)
    for number, line in _lines(path):
        entry = _parse(line, f"{path} line {number}")
        of_filter = samples.setdefault(entry["filter"], {})
        document = (task, entry["doc_id"])
        if document in of_filter:
            raise UserError(f"{path} line {number} must be of a new document, and is of {entry['doc_id']} again")
        of_filter[document] = (entry["doc_hash"], entry["metrics"])


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    number = 0
    try:
        with gzip.open(path) as file:
            for number, line in enumerate(file, 1):
                yield number, line
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path} line {number + 1} cannot be decompressed: {error}") from None


def _parse(line: bytes, where: str) -> dict[str, Any]:
    try:
        entry = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise UserError(f"{where} is not valid JSON: {error}") from None
    for key, kind in KEYS.items():
        if not isinstance(entry, dict) or not isinstance(entry.get(key), kind):
            raise UserError(f"{where} must be a sample with {key} ({kind.__name__}), and is not")
    return entry
