"""Per-sample logs: one compressed JSONL file per task, with what the model was given and answered for each document."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import orjson

from stages.lib import files, manifest

DIRECTORY = "samples"
KEPT = ("doc_id", "doc_hash", "filter", "doc", "target", "arguments", "resps", "filtered_resps")


def path_of(directory: Path, task: str) -> Path:
    """Return the path of a task's log below the directory of its suite."""
    return directory / DIRECTORY / f"{task.replace('/', '_')}.jsonl.gz"


def delete(directory: Path) -> None:
    """Delete the logs of a suite."""
    shutil.rmtree(directory / DIRECTORY, ignore_errors=True)


def write(directory: Path, samples: Mapping[str, Iterable[Mapping[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Write the logs of a suite; returns their entries in `outputs` of the suite's manifest, which lies beside it.

    `samples`: {task: documents as the harness logs them}. Equal samples give equal bytes.
    """
    outputs = {}
    for task, documents in samples.items():
        path = path_of(directory, task)
        path.parent.mkdir(exist_ok=True)
        with files.atomic(path, "wb") as file, gzip.GzipFile("", "wb", mtime=0, fileobj=file) as packed:
            for document in documents:
                packed.write(_line(document))
        outputs[path.relative_to(directory.parent).as_posix()] = manifest.describe(path)
    return outputs


def _line(document: Mapping[str, Any]) -> bytes:
    """Return a document as a line of JSON; a number that is not finite is null."""
    kept = {key: document[key] for key in KEPT}
    kept["metrics"] = {name: document[name] for name in document["metrics"]}
    options = orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY
    try:
        return orjson.dumps(kept, default=str, option=options)
    except TypeError:  # a lone surrogate, which UTF-8 does not have
        return (json.dumps(kept, default=str) + "\n").encode()
