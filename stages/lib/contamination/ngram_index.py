"""An index of the n-grams of items, and the filter of documents by it.

Texts are streamed past the index; its memory is that of the items.

A word is a number: that of the items' vocabulary, or UNKNOWN. An n-gram with an unknown word can be no item's.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np

from stages.lib.contamination.items import Item
from stages.lib.contamination.rules import SHORTEST
from stages.lib.sources.documents import Entry, batched
from stages.lib.sources.entries import TRAIN, Document, Filtered

REASON = "contaminated"
SEARCHED_AT_ONCE = 1 << 20  # characters of documents that are held

BASE = 0x9E3779B97F4A7C15
"""Base of the polynomial hash, modulo 2^64: odd, without a pattern."""

FILTER_SLOTS = 16
"""Bytes of the filter per n-gram: one window in 16 of a text without a hit goes on to the binary search."""


class NgramTable:
    """The n-grams of `n` words at `starts` [entries] of `ids` [words], the items' words as numbers.

    `rows` [entries]: the row of each entry; equal n-grams share one, unless their hashes collide with another's.
    `num_rows`: their number.
    """

    def __init__(self, ids: np.ndarray, values: np.ndarray, starts: np.ndarray, n: int) -> None:
        """Sort the n-grams. `values` [words]: random numbers for the words of `ids`."""
        self.ids, self.n = ids, n
        hashes = window_hashes(values, n)[starts]
        order = np.argsort(hashes, kind="stable")
        sorted_starts, sorted_hashes = starts[order], hashes[order]
        again = np.zeros(len(order), bool)
        again[1:] = sorted_hashes[1:] == sorted_hashes[:-1]
        for offset in range(n):
            again[1:] &= ids[sorted_starts[1:] + offset] == ids[sorted_starts[:-1] + offset]
        self.starts, self.hashes = sorted_starts[~again], sorted_hashes[~again]
        self.num_rows = len(self.starts)
        self.rows = np.empty(len(order), np.int64)
        self.rows[order] = np.cumsum(~again) - 1
        bits = max(1, (FILTER_SLOTS * len(self.starts)).bit_length())
        self._shift = np.uint64(64 - bits)
        self._filter = np.zeros(1 << bits, bool)
        self._filter[self.hashes >> self._shift] = True

    def find(self, ids: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (rows, places) of all n-grams in a text: `ids` and `values` of its words; a place is a word's."""
        hashes = window_hashes(values, self.n)
        places = np.flatnonzero(self._filter[hashes >> self._shift])
        hashes = hashes[places]
        at: np.ndarray = np.searchsorted(self.hashes, hashes)  # type: ignore[assignment]
        rows_found, places_found = [], []
        while len(at):  # once, and again for n-grams whose hashes collide
            same = self.hashes[np.minimum(at, self.num_rows - 1)] == hashes
            same &= at < self.num_rows
            at, hashes, places = at[same], hashes[same], places[same]
            equal = np.ones(len(at), bool)
            starts = self.starts[at]
            for offset in range(self.n):
                equal &= ids[places + offset] == self.ids[starts + offset]
            rows_found.append(at[equal])
            places_found.append(places[equal])
            at = at + 1
        return np.concatenate([np.empty(0, np.int64), *rows_found]), np.concatenate(
            [np.empty(0, np.int64), *places_found]
        )


def window_hashes(values: np.ndarray, n: int) -> np.ndarray:
    """Return the hash of each window of `n` values, uint64 [len(values) - n + 1], in about 2 log2(n) passes.

    `values`: uint64. The hash of a window of two parts is that of the first times BASE^(words of the second) plus that
    of the second; windows of 1, 2, 4, ... words are put together.
    """
    num_windows = len(values) - n + 1
    if num_windows <= 0:
        return np.empty(0, np.uint64)
    hashes, covered = np.zeros(num_windows, np.uint64), 0
    power, width = values, 1  # the hash of each window of `width` words
    while covered < n:
        if n & width:
            hashes = hashes * _base_to(width) + power[covered : covered + num_windows]
            covered += width
        if covered < n:
            power = power[: len(power) - width] * _base_to(width) + power[width:]
            width *= 2
    return hashes


def _base_to(exponent: int) -> np.uint64:
    return np.uint64(pow(BASE, exponent, 1 << 64))


HYPHENS = "-\u2010\u2011"

SEGMENT_CHARACTERS = 1 << 20
"""Characters that are split into words at once: each word is an object of 50 bytes or more."""


class _Kept(dict[int, int | None]):
    """Table for str.translate, filled as characters are met: None for a character that is deleted."""

    def __missing__(self, code: int) -> int | None:
        character = chr(code)
        if unicodedata.category(character) == "Pd" and character not in HYPHENS:
            self[code] = ord(" ")
            return self[code]
        kept = character.isspace() or unicodedata.category(character)[0] in "LMN"
        self[code] = code if kept else None
        return self[code]


_KEPT = _Kept()


def words_of(text: str) -> list[str]:
    """Return the words of a text."""
    return unicodedata.normalize("NFKC", text).lower().translate(_KEPT).split()


def segments(text: str) -> Iterator[str]:
    """Cut a text into segments of about SEGMENT_CHARACTERS at white space, so that no word is cut."""
    begin = 0
    while begin < len(text):
        end = begin + SEGMENT_CHARACTERS
        while end < len(text) and not text[end].isspace():
            end += 1
        yield text[begin:end]
        begin = end


UNKNOWN = 0
SEPARATOR = np.full(1, UNKNOWN, np.int32)
BATCH_WORDS = 1 << 17
"""Words that are looked up at once: the arrays of a batch stay in the processor's cache."""

TEMPLATE_ITEMS, TEMPLATE_SHARE = 10, 0.5
"""An n-gram in more than so many of a task's items, and in more than this share of them, is the task's template."""

LABEL = re.compile(r"\s*\w[\w ]{0,20}:\s")

Key = TypeVar("Key")


def short_lines(text: str, n: int) -> Iterator[list[str]]:
    """Yield the words of each line with SHORTEST to n - 1 of them, without its label, unless it is the whole text."""
    whole = words_of(text)
    for line in text.split("\n"):
        words = words_of(LABEL.sub("", line))
        if SHORTEST <= len(words) < n and words != whole:
            yield words


class NgramIndex:
    """The n-grams of `n` words of items; an item or a line of one with SHORTEST to n - 1 words is one n-gram.

    A question is often shorter than n words, and its prompt puts a label before it, as `Question:`, and others behind.

    `num_ngrams`: number of different n-grams. `of_item`: the numbers of each item's n-grams, by place in its text.
    """

    def __init__(self, items: Sequence[Item], n: int, clean: Callable[[str], str] = str) -> None:
        """Build the index. `clean`: what tokenization does to a text, which is done to the items too."""
        self.n = n
        self._vocabulary: dict[str, int] = {}
        pieces = [(number, words_of(clean(item.text))) for number, item in enumerate(items)]
        pieces += [(number, words) for number, item in enumerate(items) for words in short_lines(clean(item.text), n)]
        numbers = self._vocabulary
        texts = [
            np.array([numbers.setdefault(word, len(numbers) + 1) for word in words], np.int32) for _, words in pieces
        ]
        self._values = np.random.Generator(np.random.PCG64(0)).integers(
            1 << 64, size=len(self._vocabulary) + 1, dtype=np.uint64
        )
        self._ids = np.concatenate([SEPARATOR, *texts])
        ends = 1 + np.cumsum([len(text) for text in texts], dtype=np.int64)
        self.tables: list[NgramTable] = []
        self._firsts: list[int] = []  # the number of each table's first n-gram
        self.num_ngrams = 0
        self._of_piece = [np.empty(0, np.int64)] * len(pieces)
        # the words of each piece's n-grams; one that is too short has none
        lengths = np.array([min(len(text), n) for text in texts], np.int64)
        for length in np.unique(lengths[lengths >= min(n, SHORTEST)]).tolist():
            self._add_table(np.flatnonzero(lengths == length), texts, ends, length)
        of_item: list[list[np.ndarray]] = [[] for _ in items]
        for (number, _), ngrams in zip(pieces, self._of_piece, strict=True):
            of_item[number].append(ngrams)
        self.of_item = [np.concatenate(ngrams) for ngrams in of_item]
        self._drop_templates([item.task for item in items])
        self._of_some_item = np.zeros(self.num_ngrams, bool)
        self._of_some_item[np.concatenate([np.empty(0, np.int64), *self.of_item])] = True

    def _add_table(self, chosen: np.ndarray, texts: Sequence[np.ndarray], ends: np.ndarray, length: int) -> None:
        """Add the n-grams of the pieces `chosen`, which all have n-grams of `length` words."""
        counts = [len(texts[piece]) - length + 1 for piece in chosen]
        begins = [ends[piece] - len(texts[piece]) for piece in chosen]
        starts = np.concatenate([np.arange(begin, begin + count) for begin, count in zip(begins, counts, strict=True)])
        table = NgramTable(self._ids, self._values[self._ids], starts, length)
        numbers = np.split(self.num_ngrams + table.rows, np.cumsum(counts)[:-1])
        for piece, of_piece in zip(chosen.tolist(), numbers, strict=True):
            self._of_piece[piece] = of_piece
        self.tables.append(table)
        self._firsts.append(self.num_ngrams)
        self.num_ngrams += table.num_rows

    def _drop_templates(self, tasks: Sequence[str]) -> None:
        """Drop the n-grams of templates, such as a question's instructions: they tell nothing of one item."""
        of_task: dict[str, list[int]] = {}
        for item, task in enumerate(tasks):
            of_task.setdefault(task, []).append(item)
        for own in of_task.values():
            each_once = np.concatenate([np.unique(self.of_item[item]) for item in own])
            numbers, counts = np.unique(each_once, return_counts=True)
            template = numbers[counts > max(TEMPLATE_ITEMS, TEMPLATE_SHARE * len(own))]
            if len(template):
                for item in own:
                    self.of_item[item] = self.of_item[item][~np.isin(self.of_item[item], template)]

    def search(self, documents: Iterable[tuple[Key, str]]) -> Iterator[tuple[np.ndarray, list[Key]]]:
        """Yield (numbers of n-grams, keys of the documents that hold them) in documents, given as (key, text).

        Both have an entry per hit, which may be repeated. Memory is bounded.
        """
        for ids, keys, begins in self._batches(documents):
            values = self._values[ids]
            for table, first in zip(self.tables, self._firsts, strict=True):
                rows, places = table.find(ids, values)
                wanted = self._of_some_item[first + rows]
                rows, places = rows[wanted], places[wanted]
                if len(rows):
                    owners: np.ndarray = np.searchsorted(begins, places, side="right") - 1  # type: ignore[assignment]
                    yield first + rows, [keys[owner] for owner in owners.tolist()]

    def _batches(self, documents: Iterable[tuple[Key, str]]) -> Iterator[tuple[np.ndarray, list[Key], list[int]]]:
        """Yield (words as numbers, keys of the documents among them, the place at which each begins)."""
        held: list[np.ndarray] = []
        keys: list[Key] = []
        begins: list[int] = []
        size = 0
        for key, text in documents:
            keys.append(key)
            begins.append(size)
            for segment in segments(text):
                words = words_of(segment)
                numbers = map(self._vocabulary.get, words, itertools.repeat(UNKNOWN))
                held.append(np.fromiter(numbers, np.int32, len(words)))
                size += len(held[-1])
                if size >= BATCH_WORDS:
                    ids = np.concatenate(held)
                    yield ids, keys, begins
                    # the document may go on, and an n-gram begin before the cut
                    held = [ids[max(begins[-1], size - self.n + 1) :]]
                    keys, begins, size = [key], [0], len(held[0])
            held.append(SEPARATOR)
            size += 1
        if held:
            yield np.concatenate(held), keys, begins


def without(found: Iterable[Entry], index: NgramIndex, text_of: Callable[[Document], str]) -> Iterator[Entry]:
    """Yield the entries, with Filtered in place of each training document that holds an n-gram of the index.

    Validation documents stay: nothing is trained on them.
    """
    for batch in batched(found, SEARCHED_AT_ONCE):
        training = (
            (number, text_of(entry))
            for number, entry in enumerate(batch)
            if isinstance(entry, Document) and entry.split == TRAIN
        )
        contaminated = {number for _, numbers in index.search(training) for number in numbers}
        for number, entry in enumerate(batch):
            yield Filtered(entry.id, REASON, entry.text or "") if number in contaminated else entry
