"""The parts of a corpus, which its manifest does not name by digest: the sha256 of their shards are in both."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from stages.lib.chain import payload
from stages.lib.chain.places import Places
from stages.lib.errors import UserError
from stages.lib.manifest import Manifest

DUPLICATES = "hashes"


def parts_of(corpus: Manifest, places: Places) -> Iterator[Manifest | UserError]:
    """Yield the manifests of the parts that hold the files of a corpus, an error in place of one that differs."""
    beside = corpus.record.get("files", {})  # made by the index, of no part
    files = {name: described for name, described in payload.files_of(corpus).items() if name not in beside}
    by_part: dict[str, dict[str, tuple[int, str]]] = defaultdict(dict)
    for name, described in files.items():
        by_part[os.path.dirname(name)][name] = described
    for directory, of_part in sorted(by_part.items()):
        try:
            yield _part(corpus, places, corpus.directory / f"{directory}.json", of_part)
        except UserError as error:
            yield error
    yield from _missing_parts(corpus, by_part)


def _part(corpus: Manifest, places: Places, path: Path, expected: payload.Described) -> Manifest:
    if not path.exists():
        raise UserError(f"{path} is missing, and {corpus.path} was made from it")
    part = places.read(path)
    found = {
        os.path.relpath(part.directory / name, corpus.directory): described
        for name, described in payload.files_of(part).items()
    }
    if found != expected:
        raise UserError(f"{path} must be the part that {corpus.path} was made from, and has other shards")
    if part.identity["tokenizer"] != corpus.identity["tokenizer"]:
        raise UserError(f"{path} must have the tokenizer of {corpus.path}, and has another")
    return part


def _missing_parts(corpus: Manifest, by_part: dict[str, dict[str, tuple[int, str]]]) -> Iterator[UserError]:
    for source in corpus.identity["sources"]:
        if not any(Path(directory).parent.name == source for directory in by_part):
            yield UserError(f"{corpus.path} must have files of the source {source}, and has none")


def duplicates_of(part: Manifest, places: Places) -> Manifest | None:
    """Return the manifest of the duplicates that a part left out; None if it kept them.

    Raises UserError if it is missing, or has other ones.
    """
    if "duplicates" not in part.identity:
        return None
    path = places.root / DUPLICATES / part.path.absolute().parents[1].name / "manifest.json"
    if not path.exists():
        raise UserError(f"{path} is missing, and {part.path} was made from it")
    made = places.read(path)
    if all(sha256 != part.identity["duplicates"] for _, sha256 in payload.files_of(made).values()):
        raise UserError(f"{path} must hold the duplicates that {part.path} left out, and has others")
    return made
