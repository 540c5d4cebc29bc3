"""Documents as token ids: long texts are encoded in segments, and each document is BOS, ids, EOS."""

from __future__ import annotations

import collections
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from stages.lib.sources.entries import Document
from stages.lib.tokenizer.tokenizer import Tokenizer

Encode = Callable[[list[str], list[str]], list[np.ndarray]]
"""Encodes texts; the second argument holds the documents' names."""

SEGMENT_CHARACTERS = 1 << 20
"""A longer text is encoded in segments: encoders need up to a hundred times a text's size in memory."""

CONTEXT = 1000  # characters on both sides of a cut, which are encoded to check that it keeps the ids
SEARCHED = 1 << 16  # characters at the end of a segment, in which a cut is searched
TRIED = 16  # cuts of a kind that are tried, the last ones of a segment
LINE_END, SPACE = re.compile(r"\n(?!\n)"), re.compile(r"(?<=\S) (?=\S)")


def ids_of(documents: Sequence[Document], encode: Encode, dtype: np.typing.DTypeLike) -> list[np.ndarray]:
    """Return the ids of each document: its own if it is pre-tokenized, else those of its text by `encode`.

    Only the ids of long texts have `dtype`: at 4 bytes per id, they may be larger than all else together.
    """
    found = _ids_of(documents, encode, dtype, cut_by=encode)
    return [_joined(segments, dtype) if len(segments) > 1 else segments[0] for segments in found]


def _ids_of(
    documents: Sequence[Document], encode: Encode, dtype: np.typing.DTypeLike, cut_by: Encode
) -> list[list[np.ndarray]]:
    """Like `ids_of`, as a list of arrays per document: a long text gives several.

    `cut_by`: a function like `encode`, whose ids around a place decide whether the text is cut there.
    """
    short = [one for one in documents if one.ids is None and len(one.text or "") <= SEGMENT_CHARACTERS]
    of_short: Iterator[np.ndarray] = iter(())
    if short:
        of_short = iter(encode([document.text or "" for document in short], [document.id for document in short]))
    encoded: list[list[Any]] = []
    for document in documents:
        if document.ids is not None:
            encoded.append([document.ids])
        elif len(document.text or "") <= SEGMENT_CHARACTERS:
            encoded.append([next(of_short)])
        else:
            assert document.text is not None
            segments = _segments(document.text, functools.partial(_ids_of_text, cut_by, document.id))
            encoded.append([encode([segment], [document.id])[0].astype(dtype) for segment in segments])
    return encoded


def _ids_of_text(encode: Encode, name: str, text: str) -> list[int]:
    return encode([text], [name])[0].tolist()


def _segments(text: str, ids_of_text: Callable[[str], list[int]]) -> Iterator[str]:
    """Yield a text in segments whose joined ids are those of the whole text, wherever such cuts are found."""
    begin = 0
    while len(text) - begin > SEGMENT_CHARACTERS:
        end, following = _cut(text, begin, begin + SEGMENT_CHARACTERS, ids_of_text)
        yield text[begin:end]
        begin = following
    yield text[begin:]


def _cut(text: str, begin: int, last: int, ids_of_text: Callable[[str], list[int]]) -> tuple[int, int]:
    """Return (end of a segment, begin of the next) in text[begin:last], such that the cut keeps the ids around it.

    The cut is after a line end, else at a space. The space is dropped if the tokenizer puts one in front of each text.
    If every cut changes the ids, or there is none, it is after the last line end or at `last`.
    """
    lines, spaces = (_last(pattern, text, begin, last) for pattern in (LINE_END, SPACE))
    places = [(at + 1, at + 1) for at in lines]
    places += [place for at in spaces for place in ((at, at), (at, at + 1))]
    for end, following in places:
        before = text[max(begin, end - CONTEXT) : end]
        after = text[following : following + CONTEXT]
        between = text[end:following]
        if ids_of_text(before) + ids_of_text(after) == ids_of_text(before + between + after):
            return end, following
    return places[0] if lines else (last, last)


def _last(pattern: re.Pattern[str], text: str, begin: int, end: int) -> list[int]:
    """Return the places of the last matches of a pattern in the end of text[begin:end], the last one first."""
    found = pattern.finditer(text, max(begin + 1, end - SEARCHED), end)
    return [match.start() for match in collections.deque(found, TRIED)][::-1]


def with_bos_eos(
    documents: Sequence[Document], encode: Encode, tokenizer: Tokenizer, bos: bool, dtype: np.typing.DTypeLike
) -> tuple[np.ndarray, np.ndarray]:
    """Return (ids of all documents end to end, length of each): BOS if `bos` is true, those of `ids_of`, EOS."""
    head, tail = np.array([tokenizer.bos] * bos, dtype), np.array([tokenizer.eos], dtype)

    # cut by the tokenizer, not by `encode`, which may count what it encodes
    with_ends = [[head, *segments, tail] for segments in _ids_of(documents, encode, dtype, tokenizer.encode)]
    lengths = np.array([sum(map(len, segments)) for segments in with_ends], np.int64)
    flat = [segment for segments in with_ends for segment in segments]
    del with_ends  # it would keep every array alive
    return _joined(flat, dtype), lengths


def _joined(arrays: list[np.ndarray], dtype: np.typing.DTypeLike) -> np.ndarray:
    """Join arrays. A long list is emptied on the way: list and result together would take too much memory."""
    joined = np.empty(sum(map(len, arrays)), dtype)
    if len(joined) <= SEGMENT_CHARACTERS:
        return np.concatenate(arrays, out=joined, casting="unsafe")
    begin = len(joined)
    while arrays:
        array = arrays.pop()
        begin, end = begin - len(array), begin
        joined[begin:end] = array
    return joined
