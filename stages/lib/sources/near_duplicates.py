"""Near duplicates: documents whose texts were compared and differ in few words.

Candidates are documents with an equal key in a band of their sketches (see shingles). Sketches alone are known to join
pages of one template with different contents, and chains of documents whose ends have little in common. So each
candidate is compared with the document itself for which it would go: nothing is removed for an overlap with a document
that is removed too, or that no comparison was made with.

Documents have an order: all validation documents come before all training documents, then the order of the parts, then
that within a part. A document is removed if it is a near duplicate of an earlier one that stays. Thus no part that is
computed earlier or later, and no number of parts, changes what is removed.
"""

from __future__ import annotations

import bisect
import collections
import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from stages.lib.errors import UserError
from stages.lib.recipe import identity
from stages.lib.sources import duplicates, shingles

if TYPE_CHECKING:
    import pyarrow

NUMBER_BITS = np.uint64(40)
"""Bits of the number of a document in its part, below those of the part, in its place in the order of all documents."""

NUMBERS = np.uint64((1 << 40) - 1)
TRAINING = np.uint64(1 << 63)
"""The bit of a place that training documents have: they come after all validation documents."""

RUN = 1 << 18
"""Documents of a run of sketches: 84 MB with 20 bands."""

FIRST_OF_BUCKET = 8
"""Documents with one key in a band that each later one with it is compared with: the first of them."""

COMPARED = 32
"""Documents that a document is compared with at most: the first in the order."""

MIN_FAMILY = 3
"""Documents from which it is told whether two have a template in common: themselves, and at least one other."""

EDITED = 0.25
"""Minimum share of the shingles in which two documents differ that most of their family have, for an edited copy: an
edit replaces common shingles by others, so it is about a half of them. Two contents of a template have none of them."""

MIN_RECALL = 0.95
MOST_BANDS = 256


@dataclass(frozen=True, kw_only=True)
class SketchRecipe:
    """The search for candidates."""

    shingle_words: int = identity(5, minimum=1, maximum=100)
    """Words of a shingle. Words are runs of letters and digits, in lower case; each character of scripts without spaces
    is a word."""

    bands: int = identity(20, minimum=1, maximum=MOST_BANDS)
    """Bands of a sketch. Two documents are candidates if they agree in one of them."""

    rows: int = identity(5, minimum=1, maximum=100)
    """MinHashes per band. Documents of overlap s are candidates with the probability 1 - (1 - s^rows)^bands."""


@dataclass(frozen=True, kw_only=True)
class NearDuplicatesRecipe:
    """Near duplicates that are removed. Candidates are compared; those that meet all conditions are removed."""

    sketch: SketchRecipe = identity(SketchRecipe())
    """The search for candidates."""

    min_overlap: float = identity(0.8, above=0, maximum=1)
    """The minimum overlap of the two sets of shingles: the share of all their shingles that both documents have."""

    min_length_ratio: float = identity(0.8, minimum=0, maximum=1)
    """The minimum number of words of the shorter document, divided by those of the longer one."""

    max_changed_words: int | None = identity(20, minimum=0)
    """The maximum number of consecutive words of one document that the other one lacks: a longer passage is content of
    its own. null: any number."""

    keep_templates: bool = identity(True)
    """Keep documents that differ from each other where all documents of their kind differ, as pages of one template
    with different contents do. It is told from three candidates on that overlap by half of `min_overlap`."""

    def check(self, where: str) -> None:
        """Raise UserError if the bands miss too many documents of the minimum overlap."""
        bands, rows = self.sketch.bands, self.sketch.rows
        recall = shingles.probability(self.min_overlap, bands, rows)
        if recall >= MIN_RECALL:
            return
        enough = [
            f"{rows} and {where}.sketch.bands to at least {bands}"
            for rows in range(rows, 0, -1)
            for bands in range(1, MOST_BANDS + 1)
            if shingles.probability(self.min_overlap, bands, rows) >= MIN_RECALL
        ][:1]
        advice = f"set {where}.sketch.rows to {enough[0]}" if enough else f"no setting of up to {MOST_BANDS} bands does"
        raise UserError(
            f"{where}.sketch must find at least {MIN_RECALL:.0%} of the documents that overlap by min_overlap "
            f"{self.min_overlap:g}, but {bands} bands of {rows} rows find {recall:.2%}; {advice}, or raise min_overlap"
        )


class SketchRuns:
    """Writer of sketches in runs, uint64 arrays [bands, 2, documents]: keys, sorted, and numbers.

    The numbers of training documents have the bit TRAINING, so that validation documents come first.
    """

    def __init__(self, directory: Path, recipe: SketchRecipe) -> None:
        self.directory, self.recipe = directory, recipe
        self.names: list[str] = []
        self._keys: list[np.ndarray] = []
        self._numbers: list[np.ndarray] = []

    def add(self, texts: Sequence[str], numbers: np.ndarray) -> None:
        """Add documents by their texts and their numbers in the part. Those without a word get no sketch."""
        found, counts = shingles.shingles_of(*shingles.words_of(texts), self.recipe.shingle_words)
        has_words = counts > 0
        if not has_words.any():
            return
        self._keys.append(shingles.band_keys(found, counts[has_words], self.recipe.bands, self.recipe.rows))
        self._numbers.append(numbers[has_words])
        if sum(map(len, self._numbers)) >= RUN:
            self.flush()

    def flush(self) -> None:
        """Write the run in memory, if it has any document."""
        if not self._numbers:
            return
        keys, numbers = np.concatenate(self._keys, axis=1), np.concatenate(self._numbers)
        self._keys, self._numbers = [], []
        run = np.empty((self.recipe.bands, 2, len(numbers)), np.uint64)
        for band, of_band in enumerate(keys):
            order = np.lexsort((numbers, of_band))
            run[band] = of_band[order], numbers[order]
        self.names.append(f"run-{len(self.names):05d}.npy")
        duplicates.save(self.directory / self.names[-1], run)


def candidates(runs: Sequence[Sequence[Path]], bands: int, at_once: int = 1 << 22) -> np.ndarray:
    """Return the pairs of candidates of all parts, uint64 [2, pairs]: places of the later and of the earlier document.

    `runs`: the paths of each part's runs. The pairs are sorted. In memory are about `at_once` documents at a time, and
    the pairs.
    """
    owned = [(owner, path) for owner, paths in enumerate(runs) for path in paths]
    total = sum(np.load(path, mmap_mode="r").shape[2] for _, path in owned)
    slices = max(1, -(-total // at_once))
    bounds = [number * (1 << 64) // slices for number in range(slices + 1)]
    pairs, waiting, size = np.empty((2, 0), np.uint64), [], 0
    for band in range(bands):
        for first, end in itertools.pairwise(bounds):
            found = _pairs_of_buckets(*_bucket_entries(owned, band, first, end))
            waiting.append(found)
            size += found.shape[1]
            if size > max(at_once, pairs.shape[1]):
                pairs, waiting, size = _sorted_pairs([pairs, *waiting]), [], 0
    return _sorted_pairs([pairs, *waiting])


def _bucket_entries(
    owned: Sequence[tuple[int, Path]], band: int, first: int, end: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return (keys, places) of the documents whose key in a band is in [first, end)."""
    keys, places = [np.empty(0, np.uint64)], [np.empty(0, np.uint64)]
    for owner, path in owned:
        # mapped for a moment: a process may not hold the files of all runs of a large corpus
        of_run, numbers = np.load(path, mmap_mode="r")[band]
        begin = np.searchsorted(of_run, np.uint64(first))
        stop = len(of_run) if end > np.iinfo(np.uint64).max else np.searchsorted(of_run, np.uint64(end))
        keys.append(np.array(of_run[begin:stop]))
        places.append(numbers[begin:stop] | np.uint64(owner) << NUMBER_BITS)
    return np.concatenate(keys), np.concatenate(places)


def _pairs_of_buckets(keys: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return the pairs [2, pairs] of each document and the first ones with its key, later and earlier."""
    order = np.lexsort((places, keys))
    places, rank = places[order], _rank(keys[order])
    pairs = [np.empty((2, 0), np.uint64)]
    for earlier in range(FIRST_OF_BUCKET):
        later = np.flatnonzero(rank > earlier)
        pairs.append(np.stack([places[later], places[later - rank[later] + earlier]]))
    return np.concatenate(pairs, axis=1)


def _sorted_pairs(pairs: Sequence[np.ndarray]) -> np.ndarray:
    """Return pairs [2, pairs] sorted, each once, and of each later document those with the first COMPARED earlier ones.

    The first of all are the first of these, so pairs may be merged in any order.
    """
    later, earlier = np.concatenate(pairs, axis=1)
    order = np.lexsort((earlier, later))
    later, earlier = later[order], earlier[order]
    once = np.ones(len(later), bool)
    once[1:] = (later[1:] != later[:-1]) | (earlier[1:] != earlier[:-1])
    later, earlier = later[once], earlier[once]
    return np.stack([later, earlier])[:, _rank(later) < COMPARED]


def _rank(ordered: np.ndarray) -> np.ndarray:
    """Return the number of equal values before each of sorted ones."""
    first = np.ones(len(ordered), bool)
    first[1:] = ordered[1:] != ordered[:-1]
    starts = np.flatnonzero(first)
    return np.arange(len(ordered)) - np.repeat(starts, np.diff(starts, append=len(ordered)))


def owners_of(places: Any) -> Any:
    """Return the positions in the list of parts of the parts that documents are of; uint64, an array or one."""
    return ((places & ~TRAINING) >> NUMBER_BITS).astype(np.int64)


def numbers_of(places: Any) -> Any:
    """Return the numbers of documents in their parts; uint64, an array or one."""
    return (places & NUMBERS).astype(np.int64)


class Copy(NamedTuple):
    """A document as it is compared: its id, words, shingles in their order, and the set of them, sorted."""

    id: str
    words: int
    sequence: np.ndarray
    unique: np.ndarray


def schema_of_copies() -> pyarrow.Schema:
    """Return the schema of a file of copies: documents in the order of their numbers."""
    import pyarrow as pa

    shingle_list = pa.large_list(pa.field("item", pa.uint64(), nullable=False))
    return pa.schema([("number", pa.int64()), ("id", pa.string()), ("words", pa.int64()), ("shingles", shingle_list)])


def copies_of(documents: Sequence[tuple[int, str, str]], shingle_words: int) -> pyarrow.RecordBatch:
    """Return copies of documents, each (number, id, text)."""
    import pyarrow as pa

    words, counts = shingles.words_of([text for _, _, text in documents])
    found, numbered = shingles.shingles_of(words, counts, shingle_words)
    offsets = pa.array(np.concatenate([[0], np.cumsum(numbered)]), pa.int64())
    return pa.record_batch(
        [
            pa.array([number for number, _, _ in documents], pa.int64()),
            pa.array([identifier for _, identifier, _ in documents], pa.string()),
            pa.array(counts, pa.int64()),
            pa.LargeListArray.from_arrays(offsets, pa.array(found, pa.uint64())).cast(schema_of_copies().field(3).type),
        ],
        schema=schema_of_copies(),
    )


class Copies:
    """Reader of the copies of all parts, by the places of documents; the last used ones are held."""

    HELD_BYTES = 1 << 27
    OPEN_FILES = 256  # of all parts of a large corpus, a process may not open each at once

    def __init__(self, paths: Sequence[Path]) -> None:
        self._opened = functools.lru_cache(self.OPEN_FILES)(lambda owner: _opened(paths[owner]))
        self._held: collections.OrderedDict[int, Copy] = collections.OrderedDict()
        self._held_bytes = 0

    def __getitem__(self, place: int) -> Copy:
        """Return the copy of a document."""
        if place in self._held:
            self._held.move_to_end(place)
            return self._held[place]
        owner, number = place >> 40 & (1 << 23) - 1, place & (1 << 40) - 1
        numbers, firsts, batches = self._opened(owner)
        row = int(numbers.searchsorted(number))
        at = bisect.bisect_right(firsts, row) - 1
        batch, row = batches[at], row - firsts[at]
        lists = batch.column("shingles")
        begin, end = lists.offsets[row].as_py(), lists.offsets[row + 1].as_py()
        sequence = lists.values[begin:end].to_numpy().copy()  # a view would hold the file
        copy = Copy(
            batch.column("id")[row].as_py(), batch.column("words")[row].as_py(), sequence, _counted(sequence)[0]
        )
        self._held[place] = copy
        self._held_bytes += sequence.nbytes + copy.unique.nbytes
        while self._held_bytes > self.HELD_BYTES and len(self._held) > 1:
            _, oldest = self._held.popitem(last=False)
            self._held_bytes -= oldest.sequence.nbytes + oldest.unique.nbytes
        return copy


def _opened(path: Path) -> tuple[np.ndarray, list[int], list[Any]]:
    """Map a file of copies; return the numbers of its documents, the row of each batch's first one, and the batches."""
    import pyarrow as pa

    reader = pa.ipc.open_file(pa.memory_map(str(path)))
    batches = [reader.get_batch(at) for at in range(reader.num_record_batches)]
    firsts = [0, *itertools.accumulate(batch.num_rows for batch in batches)][: len(batches)]
    numbers = [batch.column("number").to_numpy() for batch in batches]
    return np.concatenate([np.empty(0, np.int64), *numbers]), firsts, batches


class Removed(NamedTuple):
    """A removed document and the one that stays for it, by their places; how much they have in common."""

    removed: int
    kept: int
    overlap: float
    length_ratio: float
    changed_words: int


class Verification:
    """Decides which candidates are near duplicates of documents that stay.

    `pairs`: of `candidates`. `gone`: places of documents that are removed for another reason, so that none stays for
    them. After `removed`, `refused` has the numbers of pairs by the condition that they do not meet.
    """

    def __init__(self, recipe: NearDuplicatesRecipe, pairs: np.ndarray, copies: Copies, gone: np.ndarray) -> None:
        self.recipe, self.pairs, self.copies = recipe, pairs, copies
        self.refused: collections.Counter[str] = collections.Counter()
        self.compared = 0
        self._gone = gone
        order = np.lexsort((pairs[0], pairs[1]))
        self._of_earlier, self._its_later = pairs[1][order], pairs[0][order]
        self._family: tuple[int, np.ndarray | None, np.ndarray] = (-1, None, pairs[0][:0])

    def removed(self) -> Iterator[Removed]:
        """Yield the documents to remove, in the order of all documents."""
        later, earlier = self.pairs
        starts = np.flatnonzero(np.diff(later, prepend=~later[:1]))
        gone_before = np.isin(self.pairs, self._gone)
        gone: set[int] = set()
        for begin, end in itertools.pairwise([*starts.tolist(), len(later)]):
            if gone_before[0, begin]:
                continue
            place, candidates = int(later[begin]), earlier[begin:end].tolist()
            for other, was_gone in zip(candidates, gone_before[1, begin:end].tolist(), strict=True):
                if was_gone or other in gone:
                    continue
                if found := self._compared(place, other, candidates):
                    gone.add(place)
                    yield found
                    break

    def _compared(self, place: int, other: int, candidates: Sequence[int]) -> Removed | None:
        """Compare a document with one of its earlier candidates; None, and counted, if they differ too much."""
        self.compared += 1
        copy, kept = self.copies[place], self.copies[other]
        overlap = overlap_of(copy.unique, kept.unique)
        ratio = min(copy.words, kept.words) / max(copy.words, kept.words)
        changed, reason = 0, None
        if overlap < self.recipe.min_overlap:
            reason = "min_overlap"
        elif ratio < self.recipe.min_length_ratio:
            reason = "min_length_ratio"
        elif overlap < 1 and self.recipe.keep_templates and self._is_template(place, other, candidates):
            reason = "keep_templates"
        elif overlap < 1:
            length = self.recipe.sketch.shingle_words
            changed = max(changed_words(copy, kept, length), changed_words(kept, copy, length))
            if self.recipe.max_changed_words is not None and changed > self.recipe.max_changed_words:
                reason = "max_changed_words"
        if reason is not None:
            self.refused[reason] += 1
            return None
        return Removed(place, other, overlap, ratio, changed)

    def _is_template(self, place: int, other: int, candidates: Sequence[int]) -> bool:
        """Return True if a document and an earlier one have a template in common with others, but not their contents.

        Of an edited copy, about a half of the shingles in which the two differ are those that the edit replaced, and
        most of the family have them; of two contents of a template, few have any. Copies of one content have more in
        common than the family has.
        """
        common, is_common = self._common(place, candidates)
        if common is None:
            return False
        copy, kept = self.copies[place].unique, self.copies[other].unique
        shared = _within(copy, kept)
        others_own = kept[~_within(kept, copy)]
        others_common = int(_within(others_own, common).sum())
        different = len(copy) - int(shared.sum()) + len(others_own)
        if int(is_common[~shared].sum()) + others_common >= EDITED * different:
            return False
        both = int((shared & ~is_common).sum())
        either = int((~is_common).sum()) + len(others_own) - others_common
        return both < self.recipe.min_overlap * either

    def _common(self, place: int, candidates: Sequence[int]) -> tuple[np.ndarray | None, np.ndarray]:
        """Return the shingles that most documents of a document's family have, and which of its own these are.

        None if the family is too small to tell. The family are the document, its earlier candidates, and the later ones
        of the first of these, that overlap by half of the minimum.
        """
        if self._family[0] != place:
            first = np.uint64(candidates[0])
            begin = int(np.searchsorted(self._of_earlier, first))
            end = min(int(np.searchsorted(self._of_earlier, first, "right")), begin + COMPARED)
            others = {*candidates, *self._its_later[begin:end].tolist()} - {place}
            copy, least = self.copies[place].unique, self.recipe.min_overlap / 2
            family = [
                copy,
                *(one for one in (self.copies[at].unique for at in others) if overlap_of(copy, one) >= least),
            ]
            common = None
            if len(family) >= MIN_FAMILY:
                values, counts = _counted(np.concatenate(family))
                common = values[counts * 2 > len(family)]
            self._family = place, common, _within(copy, copy[:0] if common is None else common)
        return self._family[1:]


def _counted(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (the set of the values, sorted, and how often each is there): np.unique, in a third of its time."""
    ordered = np.sort(values)
    first = np.ones(len(ordered), bool)
    first[1:] = ordered[1:] != ordered[:-1]
    starts = np.flatnonzero(first)
    return ordered[starts], np.diff(starts, append=len(ordered))


def overlap_of(one: np.ndarray, other: np.ndarray) -> float:
    """Return the share of all shingles of two sorted sets that both have; 0 for two empty ones."""
    together = np.concatenate([one, other])
    together.sort(kind="stable")  # merges the two
    both = int(np.count_nonzero(together[1:] == together[:-1]))
    return both / max(1, len(together) - both)


def _within(values: np.ndarray, ordered: np.ndarray) -> np.ndarray:
    """Return booleans: True for the values that a sorted set has."""
    if not len(ordered):
        return np.zeros(len(values), bool)
    return ordered[np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)] == values


def changed_words(copy: Copy, other: Copy, length: int) -> int:
    """Return the longest run of words of a document that are in no shingle of `length` words of the other one."""
    shared = np.flatnonzero(_within(copy.sequence, other.unique))
    if not len(shared):
        return copy.words
    # a shingle covers its words: those between the last word of a shared one and the first of the next are left
    between = np.diff(shared).max(initial=length) - length
    return int(max(between, shared[0], copy.words - (shared[-1] + min(length, copy.words))))
