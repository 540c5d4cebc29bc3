"""Encoding many documents: by gigatoken, as long as its ids are those of the tokenizer's own library.

On one thread, gigatoken encodes SentencePiece's BPE 5 to 8 times faster than SentencePiece, and byte-level BPE 25 to 40
times faster than tokenizers. It is young, so a sample of what it encodes is encoded by both; on a first difference
nothing that it made is used (`exactly`).

Only text goes in: of bytes that are no UTF-8, gigatoken 0.10 reads beyond the end.
"""

import functools
import importlib.metadata
import json

import numpy as np

from stages.lib import files
from stages.lib.log import logger

FIRST, EVERY = 200, 1000
"""The documents that are compared: so many at the beginning, then each of so many. They cost a second, and then 1%."""

COMPARED = 20_000
"""Characters of a document that are compared; of a longer one its middle."""

FRESH = 128_000_000
"""Characters after which gigatoken begins anew: it remembers each word that it meets (150 MB after so many)."""


class Differs(Exception):
    """gigatoken does not do as the tokenizer's own library does; the message names the document and what differs."""


def exactly(tokenizer, make):
    """What `make(encoder)` returns. It is called with a fast `Encoder`, and again with a slow one where that `Differs`.

    `make` must begin anew each time, and must leave nothing of a call that was ended by Differs.
    """
    try:
        return make(Encoder(tokenizer))
    except Differs as found:
        logger.warning("%s: all is encoded again, by %s alone", str(found), tokenizer.library)
    return make(Encoder(tokenizer, fast=False))  # out here: the error holds all that the first call had in memory


class Encoder:
    """Encodes as a `Tokenizer` does, faster where it can. `compared`: documents whose ids were seen to be the same.

    `name`: the library that encodes, with its version.
    """

    def __init__(self, tokenizer, fast=True):
        self._tokenizer = tokenizer
        self._load = _loader(tokenizer) if fast else None
        self._fast = self._load and self._load()
        self._fresh_for, self._seen, self.compared = FRESH, 0, 0
        library = "gigatoken" if self._fast else tokenizer.library
        self.name = f"{library} {importlib.metadata.version(library)}"

    @property
    def record(self):
        """What a manifest's record says of it."""
        return {"encoder": self.name, "compared_documents": self.compared}

    def encode(self, texts, names=None):
        """The ids of each text, int32 arrays, without BOS and EOS. `names`: of the documents, for a message.

        Raises Differs, after which the ids of earlier calls are not to be trusted either.
        """
        if self._fast is None:
            return self._tokenizer.encode(texts)
        found = []
        for at, text in enumerate(texts):
            name = names[at] if names else f"document {self._seen}"
            found.append(self._ids(text, name))
            if self._seen < FIRST or self._seen % EVERY == 0:
                self._compare(text, found[-1], name)
            self._seen += 1
        return found

    def _ids(self, text, name):
        if self._fresh_for < 0:
            self._fast = None  # the memory of the one is free before the other is made
            self._fast, self._fresh_for = self._load(), FRESH
        self._fresh_for -= len(text)
        try:
            return self._fast.encode(text).view(np.int32)
        except BaseException as error:
            if isinstance(error, Exception) or type(error).__name__ == "PanicException":  # of Rust, and no Exception
                raise Differs(f"{name} cannot be encoded by {self.name} ({_line(error)})") from None
            raise

    def _compare(self, text, found, name):
        if len(text) > COMPARED:
            begin = (len(text) - COMPARED) // 2
            text = text[begin : begin + COMPARED]
            found = self._ids(text, name)
        (wanted,) = self._tokenizer.encode([text])
        if not np.array_equal(found, wanted):
            shorter = min(len(found), len(wanted))
            at = next(iter(np.flatnonzero(found[:shorter] != wanted[:shorter]).tolist()), shorter)
            raise Differs(
                f"{name} has other ids by {self.name} than by {self._tokenizer.library}, from token {at} on: "
                f"{found[at : at + 4].tolist()} for {wanted[at : at + 4].tolist()}"
            )
        self.compared += 1


def _loader(tokenizer):
    """A function that makes gigatoken's tokenizer; None where it is not installed or cannot stand for this one."""
    try:
        import gigatoken
    except ImportError as error:
        logger.info("gigatoken cannot be imported (%s): %s encodes, which is slower", error, tokenizer.library)
        return None
    package = files.read_json(tokenizer.package)
    # a literal </s> in a text is only text; what is no special token is found in texts by tokenizers as well
    package["added_tokens"] = [token for token in package["added_tokens"] if not token["special"]]
    package["post_processor"] = None
    load = functools.partial(gigatoken.Tokenizer.from_json, json.dumps(package))
    try:
        load()
    except Exception as error:
        logger.info("gigatoken has no way for this tokenizer (%s): %s encodes", _line(error), tokenizer.library)
        return None
    return load


def _line(error):
    return str(error).partition("\n")[0]
