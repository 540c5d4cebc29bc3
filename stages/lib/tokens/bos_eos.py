"""Documents as ids: encoded, long ones in pieces, and framed as BOS, ids, EOS."""

import collections
import functools
import re

import numpy as np

PIECE_CHARACTERS = 1 << 20
"""A longer text is encoded in pieces: encoders need up to a hundred times a text's size in memory."""

CONTEXT = 1000  # characters on both sides of a cut, which are encoded to see whether it changes the ids
SEARCHED = 1 << 16  # characters at the end of a piece, in which it is cut
TRIED = 16  # places of a kind where a cut is tried, the last ones of a piece
LINE_END, SPACE = re.compile(r"\n(?!\n)"), re.compile(r"(?<=\S) (?=\S)")


def ids_of(documents, encode, dtype):
    """The ids of each document, arrays: its own, or those that `encode` (texts, names -> arrays) gives for its text.

    Those of a long text are of `dtype` at once: at 4 bytes an id, they may be larger than all else together.
    """
    found = _ids_of(documents, encode, dtype, cut_by=encode)
    return [_joined(segments, dtype) if len(segments) > 1 else segments[0] for segments in found]


def _ids_of(documents, encode, dtype, cut_by):
    """The same, as a list of arrays for each document: a long text gives several.

    `cut_by`: a function like `encode`, whose ids around a place decide whether the text is cut there.
    """
    encoded = [[document.ids] for document in documents]
    short = [number for number, document in enumerate(documents) if _is_short(document)]
    for number, ids in zip(short, _encoded([documents[number] for number in short], encode), strict=True):
        encoded[number] = [ids]
    for number, document in enumerate(documents):
        if encoded[number][0] is None:
            segments = _pieces(document.text, functools.partial(_ids_of_text, cut_by, document.id))
            encoded[number] = [encode([piece], [document.id])[0].astype(dtype) for piece in segments]
    return encoded


def _encoded(documents, encode):
    if not documents:
        return []
    return encode([document.text for document in documents], [document.id for document in documents])


def _is_short(document):
    return document.ids is None and len(document.text) <= PIECE_CHARACTERS


def _ids_of_text(encode, name, text):
    return encode([text], [name])[0].tolist()


def _pieces(text, ids_of_text):
    """A text in pieces whose ids, one after the other, are those of the whole text wherever that can be had."""
    begin = 0
    while len(text) - begin > PIECE_CHARACTERS:
        end, following = _cut(text, begin, begin + PIECE_CHARACTERS, ids_of_text)
        yield text[begin:end]
        begin = following
    yield text[begin:]


def _cut(text, begin, last, ids_of_text):
    """(end of a piece, begin of the next one) in text[begin:last], where the ids around are the same with and without.

    Behind a line end, else at a space. The space is left out where the tokenizer puts one in front of each text. Where
    all change the ids, or there are none, it is behind the last line end or at `last`.
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


def _last(pattern, text, begin, end):
    """The places of the last ones of a character in the end of text[begin:end], from the last on."""
    found = pattern.finditer(text, max(begin + 1, end - SEARCHED), end)
    return [match.start() for match in collections.deque(found, TRIED)][::-1]


def framed(documents, encode, tokenizer, bos, dtype):
    """(ids of all documents one after the other, length of each): BOS where `bos` is true, those of `ids_of`, EOS."""
    head, tail = np.array([tokenizer.bos] * bos, dtype), np.array([tokenizer.eos], dtype)

    def cut_by(texts, _):  # not `encode`, which may count what it encodes
        return tokenizer.encode(texts)

    with_ends = [[head, *segments, tail] for segments in _ids_of(documents, encode, dtype, cut_by)]
    lengths = np.array([sum(map(len, segments)) for segments in with_ends], np.int64)
    flat = [piece for segments in with_ends for piece in segments]
    del with_ends  # else none of its arrays can be let go
    return _joined(flat, dtype), lengths


def _joined(arrays, dtype):
    """One array of several. A long list is emptied on the way: both together would take too much memory."""
    joined = np.empty(sum(map(len, arrays)), dtype)
    if len(joined) <= PIECE_CHARACTERS:
        return np.concatenate(arrays, out=joined, casting="unsafe")
    begin = len(joined)
    while arrays:
        array = arrays.pop()
        begin, end = begin - len(array), begin
        joined[begin:end] = array
    return joined
