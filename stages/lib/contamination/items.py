"""The items of a suite: the documents of its tasks as text, in a compressed JSON lines file."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stages.lib import files, manifest
from stages.lib.errors import UserError
from stages.lib.manifest import ItemsManifest, Manifest


def read_items(paths: Sequence[Path], suites: Sequence[str]) -> tuple[list[Item], dict[str, str]]:
    """Read the items of the suites; return them, and {suite: digest of its items}.

    Raises UserError unless `paths` are the manifests of these suites.
    """
    listed = [manifest.read(path, "list_items") for path in paths]
    digests = {made.identity["suite"]: made.digest for made in listed}
    if sorted(made.identity["suite"] for made in listed) != sorted(suites):
        named = ", ".join(sorted(suites))
        expected = f"the items of {named}, as tokenize.decontaminate" if named else "left out without decontaminate"
        raise UserError(f"--items must be {expected}, got {', '.join(sorted(digests)) or 'none'}")
    return [item for made in listed for item in read(made)], dict(sorted(digests.items()))


FILE = "items.jsonl.gz"


@dataclass(frozen=True)
class Item:
    """A document of a task. `doc_id`: its number in the task, as in the harness's samples."""

    task: str
    doc_id: int
    text: str


def write_lines(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write compressed JSON lines atomically; equal rows give equal bytes."""
    with files.atomic(path) as file, gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed:
        for row in rows:
            packed.write(json.dumps(row, ensure_ascii=False).encode(errors="replace") + b"\n")


def read_rows(made: Manifest[Any, Any]) -> list[dict[str, Any]]:
    """Read the rows in the one output of a manifest. Raises UserError if they changed since it was written."""
    ((name, described),) = made.identity["outputs"].items()
    manifest.check_content(made.directory / name, described, made.path)
    return read_lines(made.directory / name)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read compressed JSON lines. Raises UserError if the file is damaged."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            # a text may hold line ends of Unicode, at which str.splitlines would cut
            return [json.loads(line) for line in iter(file.readline, "")]
    except (OSError, EOFError, ValueError) as error:
        raise UserError(f"{path} must be compressed JSON lines: {error}") from None


def write(directory: Path, items: Iterable[Item]) -> None:
    """Write the items into `directory`."""
    write_lines(directory / FILE, map(asdict, items))


def read(listed: ItemsManifest) -> list[Item]:
    """Read the items of a manifest of stages.list_items; errors as of `read_rows`."""
    return [Item(**row) for row in read_rows(listed)]
