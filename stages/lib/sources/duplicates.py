"""Exact duplicates: documents whose text is the same except for white space.

A part's documents are numbered in the order in which they are read; malformed records and filtered documents have no
number. Each document has a hash (xxh3, 128 bits: among 10^12 documents, two different ones have the same hash with a
probability of 10^-15). The hashes are stored in sorted runs, so that any number of runs are compared in bounded memory.
"""

from __future__ import annotations

import heapq
import itertools
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np

from stages.lib import files, manifest
from stages.lib.errors import UserError
from stages.lib.manifest import DocumentsManifest
from stages.lib.manifest_types import DocumentsOfPart, DuplicatesIdentity, EntryOfPart, FileDescription, NumberedPart
from stages.lib.sources import source
from stages.lib.sources.documents import Entry
from stages.lib.sources.entries import Document, Filtered

RUN = 1 << 22
"""Documents of a run: 100 MB."""

SEGMENT_CHARACTERS = 1 << 20  # of a text that is split into words at once: each word is an object of 50 bytes or more

NONE = (-1, "")
"""Number and reason of no document."""

VALIDATION_BIT = np.uint64(1 << 63)
"""Not set in the number of a validation document, so that it sorts before all training documents."""


class Runs:
    """Writer of hashes in sorted runs, uint64 arrays [3, documents]: high and low half, number."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.names: list[str] = []
        self._begin()

    def _begin(self) -> None:
        self._digests, self._numbers = bytearray(), array("Q")  # no objects: 24 bytes per document

    def add(self, digest: bytes, number: int, validation: bool) -> None:
        """Add a document: 16 bytes of hash, its number in the part, and True if it is a validation document."""
        self._digests += digest
        self._numbers.append(number if validation else number | int(VALIDATION_BIT))
        if len(self._numbers) == RUN:
            self.flush()

    def flush(self) -> None:
        """Write the run in memory, if it has any document."""
        if not self._numbers:
            return
        halves = np.frombuffer(self._digests, ">u8").reshape(-1, 2).T.astype(np.uint64)
        numbers = np.frombuffer(self._numbers, np.uint64)
        order = np.lexsort((numbers, halves[1], halves[0]))
        name = f"run-{len(self.names):05d}.npy"
        save(self.directory / name, np.stack([half[order] for half in (*halves, numbers)]))
        self.names.append(name)
        self._begin()


def save(path: Path, found: np.ndarray) -> None:
    """Write an array as .npy atomically. (numpy alone loses the system's reason if writing fails.)"""
    with files.atomic(path) as file:
        np.save(files.HashingWriter(file), found)


def saved(path: Path, found: np.ndarray) -> FileDescription:
    """As `save`, without what killed writers left beside `path`; return the file's description for a manifest."""
    files.clear_leftovers(path)
    save(path, found)
    return manifest.describe(path)


def parts_in_order(
    paths: Iterable[Path], made_by: Literal["hash_documents", "sketch", "copy_candidates"], option: str
) -> list[DocumentsManifest]:
    """Return the manifests that a stage made of the parts of a corpus, by source and part, their files compared.

    Raises UserError naming the `option` if one is of another stage, damaged or given twice.
    """
    parts = [manifest.read(path, made_by) for path in paths]
    for part in parts:
        for name, described in part.identity["outputs"].items():
            manifest.check_content(part.directory / name, described, part.path)
    parts.sort(key=_place)
    for first, second in itertools.pairwise(parts):
        if _place(first) == _place(second):
            raise UserError(f"{option} must name each part once: {first.path} and {second.path} are the same part")
    return parts


def _place(part: DocumentsManifest) -> tuple[str, int]:
    return part.identity["source"], part.identity["part"]


def described_part(part: DocumentsManifest, keys: Iterable[str]) -> DocumentsOfPart:
    """Return those of some keys that a part's manifest has, for an entry in a manifest of all parts."""
    identity: Mapping[str, Any] = part.identity
    return cast(DocumentsOfPart, {key: identity[key] for key in keys if key in identity})


INPUTS = ("inputs", "filter_code", "classifier")
"""Keys of a part on which its text depends, besides the recipe of its source."""


def entry_of_part(
    found: manifest.Manifest[DuplicatesIdentity, Any], part: NumberedPart, option: str, rerun: str
) -> EntryOfPart:
    """Return the entry of a part in a manifest of all parts, with its file compared.

    `part`: as it is now. Raises UserError naming the `option` if the manifest has no such part, or one of other text:
    stage `rerun` makes its inputs.
    """
    for entry in found.identity["parts"]:
        if (entry["source"], entry["part"], entry["parts"]) == (part["source"], part["part"], part["parts"]):
            recipes = [source.comparable(one["source_recipe"]) for one in (entry, part)]
            if recipes[0] != recipes[1] or any(entry.get(key) != part.get(key) for key in INPUTS):
                raise UserError(f"{option} {found.path} is older than the part's current files; rerun with -R {rerun}")
            manifest.check_content(
                found.directory / entry["path"], found.identity["outputs"][entry["path"]], found.path
            )
            return entry
    raise UserError(f"{option} {found.path} lacks part {part['part']} of {part['source']}; rerun with -R {found.stage}")


def hash_of(document: Document) -> bytes:
    """Return the hash of a document's text or ids, 16 bytes."""
    import xxhash

    if document.ids is not None:
        return xxhash.xxh3_128_digest(document.ids.astype("<i8").tobytes())
    assert document.text is not None
    return of_text(document.text)


def of_text(text: str) -> bytes:
    """Return the hash of a text, 16 bytes; all runs of white space are equal."""
    import xxhash

    hashing, has_words, ends_in_space = xxhash.xxh3_128(), False, False
    for begin in range(0, len(text), SEGMENT_CHARACTERS):
        segment = text[begin : begin + SEGMENT_CHARACTERS]
        words = segment.split()
        if words:
            if has_words and (ends_in_space or segment[0].isspace()):
                hashing.update(b" ")
            hashing.update(" ".join(words).encode())
            has_words, ends_in_space = True, segment[-1].isspace()
        else:
            ends_in_space = True
    return hashing.digest()


def repeated(
    runs: Sequence[Sequence[Path]], sources: Sequence[str], at_once: int = 1 << 23
) -> tuple[list[np.ndarray], list[Counter[str]]]:
    """Return the numbers of all documents but the first of equal ones, a sorted int64 array per owner; and per owner
    {source of the first of the equal ones: number}.

    `runs`: the paths of each owner's runs; `sources`: that of each owner. Owners earlier in the list come first, and
    validation documents before all training documents. In memory are about `at_once` documents at a time, of equal ones
    in a run only the first, and 8 bytes per duplicate.
    """
    owned = [(owner, path) for owner, paths in enumerate(runs) for path in paths]
    total = sum(_mapped(path).shape[1] for _, path in owned)
    slices = max(1, -(-total // at_once))
    bounds = [number * (1 << 64) // slices for number in range(slices + 1)]
    found: list[list[np.ndarray]] = [[] for _ in runs]
    kept_in: list[Counter[str]] = [Counter() for _ in runs]
    for first, end in itertools.pairwise(bounds):
        for owner, numbers in _repeated_between(owned, first, end, sources, kept_in):
            found[owner].append(numbers)
    return [_sorted(found, owner) for owner in range(len(runs))], kept_in


def _sorted(found: list[list[np.ndarray]], owner: int) -> np.ndarray:
    """Return the numbers of an owner as one sorted array, and free its entry of `found`."""
    numbers, found[owner] = np.concatenate([np.empty(0, np.int64), *found[owner]]), []
    numbers.sort()
    return numbers


def _mapped(path: Path) -> np.ndarray:
    """Map a run. Its file stays open while the array is held, and a process may not open all runs of a large corpus."""
    return np.load(path, mmap_mode="r")


def _repeated_between(
    owned: Iterable[tuple[int, Path]], first: int, end: int, sources: Sequence[str], kept_in: Sequence[Counter[str]]
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield (owner, numbers) of repeated documents whose hash has its high half in [first, end); count `kept_in`."""
    segments, owner_of, times = [], [], []
    for owner, path in owned:
        run = _mapped(path)
        begin = np.searchsorted(run[0], np.uint64(first))
        stop = run.shape[1] if end > np.iinfo(np.uint64).max else np.searchsorted(run[0], np.uint64(end))
        high, low, numbers = run[:, begin:stop]
        again = _equal_to_previous(high, low)  # within the run: one of equal documents remains, however many there are
        if again.any():
            yield owner, _without_bit(numbers[again])
        segments.append(run[:, begin:stop][:, ~again])
        times.append(np.diff(np.flatnonzero(~again), append=len(again)))
        owner_of.append(np.full(segments[-1].shape[1], owner, np.int32))
    if not segments:
        return
    (high, low, numbers), owners = np.concatenate(segments, axis=1), np.concatenate(owner_of)
    order = np.lexsort((numbers & ~VALIDATION_BIT, owners, numbers >> np.uint64(63), low, high))
    same = _equal_to_previous(high[order], low[order])
    _count_kept(owners[order], np.concatenate(times)[order] - ~same, same, sources, kept_in)
    again = order[same]
    for owner in np.unique(owners[again]):
        yield int(owner), _without_bit(numbers[again[owners[again] == owner]])


def _count_kept(
    owners: np.ndarray, repeats: np.ndarray, same: np.ndarray, sources: Sequence[str], kept_in: Sequence[Counter[str]]
) -> None:
    """Add to `kept_in` the source of the first document of each group. `repeats`: removed documents per row."""
    names = list(dict.fromkeys(sources))
    of_owner = np.array([names.index(source) for source in sources])
    firsts = np.maximum.accumulate(np.where(same, 0, np.arange(len(same))))
    chosen = np.flatnonzero(repeats)
    pairs, rows = np.unique(owners[chosen] * len(names) + of_owner[owners[firsts[chosen]]], return_inverse=True)
    for pair, total in zip(pairs.tolist(), np.bincount(rows, repeats[chosen]).tolist(), strict=True):
        kept_in[pair // len(names)][names[pair % len(names)]] += int(total)


def _equal_to_previous(high: np.ndarray, low: np.ndarray) -> np.ndarray:
    """Return booleans [documents]: True if the hash equals that of the document before. The halves are sorted."""
    same = np.zeros(len(high), bool)
    same[1:] = (high[1:] == high[:-1]) & (low[1:] == low[:-1])
    return same


def _without_bit(numbers: np.ndarray) -> np.ndarray:
    """Return the numbers of documents without the bit of the split."""
    return (numbers & ~VALIDATION_BIT).astype(np.int64)


def without(
    found: Iterable[Entry], numbers: Mapping[str, np.ndarray], total: int, option: str, rerun: str
) -> Iterator[Entry]:
    """Yield the entries of `documents.read`, with Filtered in place of each document that is removed.

    `numbers`: {reason: sorted numbers of documents}; no document has two. Raises UserError naming the `option` with
    its manifest unless there are `total` documents; stage `rerun` makes its inputs.
    """
    reasons = [[(number, reason) for number in of_reason.tolist()] for reason, of_reason in numbers.items()]
    waiting = heapq.merge(*reasons)
    (following, reason), number = next(waiting, NONE), 0
    for entry in found:
        if not isinstance(entry, Document):
            yield entry
            continue
        if number == following:
            yield Filtered(entry.id, reason, entry.text or "")
            following, reason = next(waiting, NONE)
        else:
            yield entry
        number += 1
    if number != total:
        raise UserError(f"{option} was built from {total} documents, but {number} are read; rerun with -R {rerun}")
