"""The inputs of a part of a source: spans of files, described by their content, and a check that they do not change."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stages.lib import manifest
from stages.lib.errors import UserError
from stages.lib.sources import spans, storage
from stages.lib.sources.kinds.registry import kind_of

if TYPE_CHECKING:
    from stages.lib.manifest import Manifest
    from stages.lib.sources.source import SourceRecipe
    from stages.lib.sources.spans import Span


def spans_of_part(recipe: SourceRecipe, listed: Sequence[Mapping[str, Any]], part: int, parts: int) -> list[Span]:
    """Return the spans of one part of a source. `listed`: [{"name", "bytes"}]."""
    return spans.of_part(listed, part, parts, kind_of(recipe).can_be_cut)


def states(recipe: SourceRecipe, listed: Manifest, chosen: Iterable[Span]) -> dict[str, storage.Status]:
    """Return {name: Status} of the files of some spans, for `documents.read` to compare; call it before `described`."""
    if not kind_of(recipe).needs_paths:
        return {}
    sizes = {file["name"]: file["bytes"] for file in listed.identity["files"]}
    found = {}
    for name in {span.name for span in chosen}:
        if storage.is_remote(name):  # `described` checks that it is as it was listed
            found[name] = storage.Status(sizes[name], listed.record["etags"][name])
        elif os.path.exists(name):  # `described` reports a missing file
            found[name] = storage.status(name)
    return found


def of_part(recipe: SourceRecipe, listed: Manifest, chosen: Sequence[Span]) -> list[dict[str, Any]]:
    """As `described`, of every file that a part's documents depend on."""
    if kind_of(recipe).needs_every_file:
        chosen = spans.whole(file["name"] for file in listed.identity["files"])
    return described(recipe, listed, chosen)


def described(recipe: SourceRecipe, listed: Manifest, chosen: Iterable[Span]) -> list[dict[str, Any]]:
    """Return the content of spans of a listed source for a manifest: [{"name", "bytes", "sha256"}].

    A cut file also has its bytes {"first", "end"}; a remote file has {"etag"} in place of the sha256. `listed`: the
    manifest of stages.list. Raises UserError if a file is not as it was listed.
    """
    kind, sizes = kind_of(recipe), {file["name"]: file["bytes"] for file in listed.identity["files"]}
    found = []
    for span in chosen:
        name = span.name
        entry: dict[str, Any] = {"name": name}
        if span.end is not None:
            entry |= {"first": span.first, "end": span.end}
        if storage.is_remote(name):
            status = storage.status(name)
            if status.etag != listed.record["etags"][name]:
                raise UserError(f"{name} must be as it was when {listed.path} was written, and changed; run -R list")
            found.append(entry | {"bytes": status.bytes, "etag": status.etag})
        else:
            path = kind.root() / name
            manifest.check_size(path, sizes[name], listed.path)
            found.append(entry | _described_file(path, *kind.extent(span)))
    return found


def _described_file(path: Path, first: int, end: int | None) -> dict[str, Any]:
    try:
        return manifest.describe(path, first, end)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
