"""Pre-tokenized documents: their text, and a check that it has the same ids by the corpus' tokenizer."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.sources.documents import Document
from stages.lib.tokenizer.fast import CHECK_CHARACTERS, CHECK_EVERY, CHECK_FIRST
from stages.lib.tokenizer.tokenizer import Tokenizer

SEGMENT_IDS = 1 << 18
"""Ids that are decoded at once."""


def with_text(document: Document, tokenizer: Tokenizer) -> Document:
    """Return a document; a pre-tokenized one gets its text, and loses BOS and EOS at its ends.

    Raises UserError if an id is not one of the tokenizer's.
    """
    if document.ids is None:
        return document
    ids: Any = document.ids
    if len(ids) and not 0 <= ids.min() <= ids.max() < tokenizer.vocab_size:
        wrong = ids[(ids < 0) | (ids >= tokenizer.vocab_size)]
        raise UserError(
            f"{document.id} must hold ids of the tokenizer, from 0 to {tokenizer.vocab_size - 1}, got {wrong[0]}"
        )
    begin = 1 if len(ids) and ids[0] == tokenizer.bos else 0
    end = len(ids) - 1 if len(ids) > begin and ids[-1] == tokenizer.eos else len(ids)
    ids = ids[begin:end].astype(np.int32, copy=False)
    return dataclasses.replace(document, text=text_of(ids, tokenizer.decode), ids=ids)


def text_of(ids: np.ndarray, decode: Callable[[list[int]], str]) -> str:
    """Decode ids, a long array in segments: each id is an object of 50 bytes and more while it is decoded."""
    texts, begin = [], 0
    while begin < len(ids):
        end = next((at for at in range(begin + SEGMENT_IDS, len(ids)) if _is_between(ids, at, decode)), len(ids))
        # after the preceding id: some decoders drop a space at the beginning of a text
        before = ids[max(0, begin - 1) : begin].tolist()
        texts.append(decode(before + ids[begin:end].tolist())[len(decode(before)) :])
        begin = end
    return "".join(texts)


def _is_between(ids: np.ndarray, at: int, decode: Callable[[list[int]], str]) -> bool:
    """Return whether the ids on both sides of a place are whole characters, not bytes of one character."""
    before, after, both = (decode(some.tolist()) for some in (ids[at - 1 : at], ids[at : at + 1], ids[at - 1 : at + 1]))
    return bool(before and after and "\ufffd" not in both and both.startswith(before))


class PretokenizedCheck:
    """Compares the ids of pre-tokenized documents with those of a Tokenizer, in a sample of a source's documents.

    They need not be equal. But if most differ, they may be another tokenizer's, and no other check finds that.
    """

    def __init__(self, source: str, tokenizer: Tokenizer) -> None:
        self.source, self.tokenizer = source, tokenizer
        self.documents = self.compared = self.same = 0

    def look(self, document: Document) -> None:
        """Compare a document of `with_text` if it is pre-tokenized, in the sample, and not too long."""
        if document.ids is None:
            return
        assert document.text is not None
        in_sample = self.documents < CHECK_FIRST or self.documents % CHECK_EVERY == 0
        if in_sample and len(document.text) <= CHECK_CHARACTERS:
            (expected,) = self.tokenizer.encode([document.text], [document.id])
            self.compared += 1
            self.same += np.array_equal(np.asarray(document.ids), expected)
        self.documents += 1

    def warn(self) -> None:
        """Log a warning if most documents differ."""
        if self.same < self.compared / 2:
            logger.warning(
                "source %s: the token ids of %s of %s compared documents differ from those of the tokenizer: were they "
                "made by another tokenizer?",
                *(self.source, self.compared - self.same, self.compared),
            )

    def record(self) -> dict[str, Any]:
        """Return the entry of a manifest's record; empty if no document is pre-tokenized."""
        return {"given_ids": {"compared": self.compared, "same": self.same}} if self.documents else {}
