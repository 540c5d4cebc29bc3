"""Documents as ids: encoded, long ones in pieces, and framed as BOS, ids, EOS."""

import dataclasses

import numpy as np

from stages.lib.errors import UserError

PIECE_CHARACTERS = 1 << 20
"""A longer text is encoded in pieces, cut behind a line end where there is one: encoders need up to a hundred times a
text's size in memory."""


def with_text(document, tokenizer):
    """A document; one of ids has its text as well, and neither BOS nor EOS at its ends.

    Raises UserError where an id is none of the tokenizer's.
    """
    if document.ids is None:
        return document
    ids = document.ids.astype(np.int64)
    wrong = ids[(ids < 0) | (ids >= tokenizer.vocabulary)]
    if len(wrong):
        raise UserError(
            f"{document.id} must hold ids of the tokenizer, from 0 to {tokenizer.vocabulary - 1}, and has {wrong[0]}"
        )
    begin = 1 if len(ids) and ids[0] == tokenizer.bos else 0
    end = len(ids) - 1 if len(ids) > begin and ids[-1] == tokenizer.eos else len(ids)
    ids = ids[begin:end]
    return dataclasses.replace(document, text=tokenizer.decode(ids.tolist()), ids=ids.astype(np.int32))


def ids_of(documents, encode, dtype):
    """The ids of each document, arrays: its own, or those that `encode` (texts, names -> arrays) gives for its text.

    Those of a long text are of `dtype` at once: at 4 bytes an id, they may be larger than all else together.
    """
    return [_joined(pieces, dtype) if len(pieces) > 1 else pieces[0] for pieces in _ids_of(documents, encode, dtype)]


def _ids_of(documents, encode, dtype):
    """The same, as a list of arrays for each document: a long text gives several."""
    encoded = [[document.ids] for document in documents]
    short = [number for number, document in enumerate(documents) if _is_short(document)]
    for number, ids in zip(short, _encoded([documents[number] for number in short], encode), strict=True):
        encoded[number] = [ids]
    for number, document in enumerate(documents):
        if encoded[number][0] is None:
            encoded[number] = [encode([piece], [document.id])[0].astype(dtype) for piece in _pieces(document.text)]
    return encoded


def _encoded(documents, encode):
    if not documents:
        return []
    return encode([document.text for document in documents], [document.id for document in documents])


def _is_short(document):
    return document.ids is None and len(document.text) <= PIECE_CHARACTERS


def _pieces(text):
    begin = 0
    while begin < len(text):
        end = begin + PIECE_CHARACTERS
        if end < len(text):
            end = text.rfind("\n", begin, end) + 1 or end  # 0 where there is no line end
        yield text[begin:end]
        begin = end


def framed(documents, encode, tokenizer, bos, dtype):
    """(ids of all documents one after the other, length of each): BOS where `bos` is true, those of `ids_of`, EOS."""
    head, tail = np.array([tokenizer.bos] * bos, dtype), np.array([tokenizer.eos], dtype)
    with_ends = [[head, *pieces, tail] for pieces in _ids_of(documents, encode, dtype)]
    lengths = np.array([sum(map(len, pieces)) for pieces in with_ends], np.int64)
    flat = [piece for pieces in with_ends for piece in pieces]
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
