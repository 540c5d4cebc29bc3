"""The files that a manifest describes, and whether they are as it says."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from stages.lib import manifest
from stages.lib.errors import UserError
from stages.lib.manifest import Manifest
from stages.lib.tokenizer import tokenizer

Described = dict[str, tuple[int, str]]
"""{relative path: (bytes, sha256)}"""


def files_of(made: Manifest) -> Described:
    """Return the files of a manifest, anywhere in its identity, by their paths relative to it.

    The model of a trained tokenizer is in the record, since it holds its trainer's arguments as well.
    """
    found = {name: (file["bytes"], file["sha256"]) for name, file in made.identity.get("outputs", {}).items()}
    if "model_sha256" in made.record:
        found[tokenizer.MODEL] = made.record["model_bytes"], made.record["model_sha256"]

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            if {"path", "bytes", "sha256"} <= value.keys():
                found[value["path"]] = value["bytes"], value["sha256"]
            value = list(value.values())
        if isinstance(value, list):
            for inner in value:
                walk(inner)

    walk(made.identity)
    return found


def faults_of(made: Manifest, described: Mapping[str, tuple[int, str]]) -> list[str]:
    """Return what is wrong with files of a manifest, one sentence each; each file is read as a whole."""
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        found = pool.map(lambda file: _fault_of(made, *file), described.items())
    return [fault for fault in found if fault]


def _fault_of(made: Manifest, name: str, described: tuple[int, str]) -> str | None:
    path = Path(os.path.normpath(made.directory / name))
    try:
        manifest.check_content(path, {"bytes": described[0], "sha256": described[1]}, made.path)
    except UserError as error:
        return str(error)
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    return None
