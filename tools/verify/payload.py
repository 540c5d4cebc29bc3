"""The files that a manifest describes, whether they are as it says, and the files beside them that it does not have."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from stages.lib import files, manifest
from stages.lib.checkpoints.commit import MILESTONE
from stages.lib.errors import UserError
from stages.lib.huggingface import export_directory
from stages.lib.manifest import MODELS, Manifest
from stages.lib.manifest_types import FileDescription
from stages.lib.scoring.inputs import kept_manifest
from stages.lib.tokenizer import tokenizer

Described = dict[str, tuple[int, str]]
"""{relative path: (bytes, sha256)}"""


def files_of(result: Manifest) -> Described:
    """Return the files of a manifest, anywhere in its identity, by their paths relative to it.

    Files whose bytes may differ between two equal results are in the record: the figures of a parity check, pages, the
    data of local tasks, the plan, and the model of a trained tokenizer, which holds its trainer's arguments as well.
    """
    described = result.identity.get("outputs", {}) | result.record.get("pages", {}) | result.record.get("files", {})
    files_by_name = {name: (file["bytes"], file["sha256"]) for name, file in described.items()}
    if "model_sha256" in result.record:
        files_by_name[tokenizer.MODEL] = result.record["model_bytes"], result.record["model_sha256"]

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            if {"path", "bytes", "sha256"} <= value.keys():
                files_by_name[value["path"]] = value["bytes"], value["sha256"]
            value = list(value.values())
        if isinstance(value, list):
            for inner in value:
                walk(inner)

    walk(result.identity)
    return files_by_name


def logs_of(result: Manifest) -> Described:
    """Return the logs that a manifest describes as they were then: a training that continues appends to them."""
    return {name: (file["bytes"], file["sha256"]) for name, file in result.record.get("logs", {}).items()}


def faults_of(result: Manifest, described: Mapping[str, tuple[int, str]], logs: bool = False) -> list[str]:
    """Return what is wrong with files of a manifest, one sentence each; each file is read as a whole.

    `logs`: they may have grown, and must begin with the bytes that they had when the manifest was written.
    """

    def fault_of(name: str) -> str | None:
        path, (size, sha256) = Path(os.path.normpath(result.directory / name)), described[name]
        content: FileDescription = {"bytes": size, "sha256": sha256}
        try:
            if not logs:
                manifest.check_content(path, content, result.path)
            elif not path.exists():
                return f"{path} is missing, but {result.path} was made with it"
            elif manifest.describe(path, 0, size) != content:
                return (
                    f"{path} changed since {result.path} was written: its first {size:,} bytes have another sha256; "
                    "restore the log, curves and health of the run are read from it"
                )
        except UserError as error:
            return str(error)
        except OSError as error:
            return f"{path} cannot be read: {error.strerror}"
        return None

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return [fault for fault in pool.map(fault_of, described) if fault]


LOADED = (
    *("*.safetensors", "*.bin", "*.pt", "*.pth", "*.h5", "*.msgpack", "*.index.json", "*.py", "*.jinja", "*.model"),
    *("*config.json", "tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab*", "merges.txt"),
)
"""Names of files in the directory of a model that libraries load."""


def strays_of(result: Manifest) -> tuple[list[Path], list[Path]]:
    """Return the files that lie among those of a manifest without a digest: (files that libraries load, others).

    Looked at are the directories of exports, checkpoints, parts of a corpus and suites.
    """
    own = {os.path.normpath(result.directory / name) for name in files_of(result)} | {os.path.normpath(result.path)}
    if result.stage == "convert":
        directory = result.directory
        own |= {str(directory / name) for name in (export_directory.KEPT, export_directory.PARITY)}
        own |= {str(directory / name) for name in (export_directory.CARD_MANIFEST, export_directory.CARD)}
    elif result.stage in MODELS:
        directory = Path(os.path.normpath(result.directory / result.identity["checkpoint"]))
        own |= {str(directory / MILESTONE)}
    elif result.stage in ("evaluate", "tokenize"):
        directory = files.payload_of(result.path)
        own |= {str(kept_manifest(result.path))}
    else:
        return [], []
    strays = [path for path in sorted(directory.rglob("*")) if path.is_file() and os.path.normpath(path) not in own]
    loaded = [
        path
        for path in strays
        if result.stage == "convert" and any(fnmatch.fnmatch(path.name, pattern) for pattern in LOADED)
    ]
    return loaded, [path for path in strays if path not in loaded]
