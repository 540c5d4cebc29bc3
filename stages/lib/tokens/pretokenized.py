"""Documents that come as token ids: the text that they have, and whether it has those ids here."""

import dataclasses

import numpy as np

from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.tokenizer.fast import COMPARED, EVERY, FIRST

PIECE_IDS = 1 << 18
"""Ids that are decoded at once."""


def with_text(document, tokenizer):
    """A document; one of ids has its text as well, and neither BOS nor EOS at its ends.

    Raises UserError where an id is none of the tokenizer's.
    """
    if document.ids is None:
        return document
    ids = document.ids
    if len(ids) and not 0 <= ids.min() <= ids.max() < tokenizer.vocab_size:
        wrong = ids[(ids < 0) | (ids >= tokenizer.vocab_size)]
        raise UserError(
            f"{document.id} must hold ids of the tokenizer, from 0 to {tokenizer.vocab_size - 1}, and has {wrong[0]}"
        )
    begin = 1 if len(ids) and ids[0] == tokenizer.bos else 0
    end = len(ids) - 1 if len(ids) > begin and ids[-1] == tokenizer.eos else len(ids)
    ids = ids[begin:end].astype(np.int32, copy=False)
    return dataclasses.replace(document, text=_text_of(ids, tokenizer.decode), ids=ids)


def _text_of(ids, decode):
    """The text of ids, of many in pieces: each is an object of 50 bytes and more while it is decoded."""
    segments, begin = [], 0
    while begin < len(ids):
        end = next((at for at in range(begin + PIECE_IDS, len(ids)) if _is_between(ids, at, decode)), len(ids))
        # behind the id before: some decoders leave out a space at the beginning of a text
        before = ids[max(0, begin - 1) : begin].tolist()
        segments.append(decode(before + ids[begin:end].tolist())[len(decode(before)) :])
        begin = end
    return "".join(segments)


def _is_between(ids, at, decode):
    """Whether the ids on both sides of a place are characters each, and no bytes that make one up together."""
    before, after, both = (decode(some.tolist()) for some in (ids[at - 1 : at], ids[at : at + 1], ids[at - 1 : at + 1]))
    return before and after and "\ufffd" not in both and both.startswith(before)


class Agreement:
    """Whether the ids that a source brings are those of their text by a Tokenizer, of a sample of its documents.

    They need not be. But where most are not, they may be another tokenizer's, which nothing else would show.
    """

    def __init__(self, source, tokenizer):
        self.source, self.tokenizer = source, tokenizer
        self.documents = self.compared = self.same = 0

    def look(self, document):
        """Compare a document of `with_text`, where it came as ids, is one of the sample, and is not too long."""
        if document.ids is None:
            return
        if (self.documents < FIRST or self.documents % EVERY == 0) and len(document.text) <= COMPARED:
            (wanted,) = self.tokenizer.encode([document.text])
            self.compared += 1
            self.same += np.array_equal(document.ids, wanted)
        self.documents += 1

    def warn(self):
        """Say it where most differ."""
        if self.same < self.compared / 2:
            logger.warning(
                "source %s has other token ids than its text has here, in %s of %s compared documents: are they of "
                "another tokenizer?",
                *(self.source, self.compared - self.same, self.compared),
            )

    def record(self):
        """What a manifest's record says of it; nothing where no document came as ids."""
        return {"given_ids": {"compared": self.compared, "same": self.same}} if self.documents else {}
