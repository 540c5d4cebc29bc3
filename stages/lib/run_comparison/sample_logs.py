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

KEYS = {"doc_id": int, "doc_hash": str, "filter": str, "metrics": dict}
"""The keys of a line that are read, and their types."""

Sample = tuple[str, dict[str, Any]]
"""(hash of the document, {metric: value})"""


@dataclass(frozen=True)
class SampleLog:
    """The log of a task: samples by filter and document."""

    samples: dict[str, dict[int, Sample]]

    def values(self, metric: str) -> dict[int, tuple[str, Any]]:
        """Return {document: (its hash, value)} of a metric, given as METRIC or METRIC/FILTER; None for no value."""
        name, _, filtered = metric.partition("/")
        found = self.samples.get(filtered or "none", {})
        return {document: (digest, metrics.get(name)) for document, (digest, metrics) in found.items()}


def read(evaluation: Manifest, suite: str, task: str) -> SampleLog | None:
    """Read the log of a task; None if the evaluation has none, as those of earlier versions.

    Raises UserError if the log is missing, changed since the evaluation's manifest was written, or is not valid.
    """
    name = f"{suite}/samples/{task}.jsonl.gz"
    described = evaluation.identity.get("outputs", {}).get(name)
    if described is None:
        return None
    path = evaluation.directory / name
    manifest.check_content(path, described, evaluation.path)
    samples: dict[str, dict[int, Sample]] = {}
    for number, line in _lines(path):
        entry = _parse(line, f"{path} line {number}")
        of_filter = samples.setdefault(entry["filter"], {})
        if entry["doc_id"] in of_filter:
            raise UserError(f"{path} line {number} must be of a new document, and is of {entry['doc_id']} again")
        of_filter[entry["doc_id"]] = (entry["doc_hash"], entry["metrics"])
    return SampleLog(samples)


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
