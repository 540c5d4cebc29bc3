"""Fast encoding of many documents: by gigatoken, as long as its ids are those of the tokenizer's own library.

On one thread, gigatoken encodes SentencePiece's BPE 5 to 8 times faster than SentencePiece, and byte-level BPE 25 to 40
times faster than tokenizers. It is young, so a sample of the documents is encoded by both; on the first difference, all
its results are discarded (`encode_exactly`).

Only text goes in: for bytes that are not UTF-8, gigatoken 0.10 reads beyond the end.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from stages.lib import files
from stages.lib.errors import is_fault
from stages.lib.log import logger
from stages.lib.tokenizer.tokenizer import SPACE, Tokenizer

CHECK_FIRST, CHECK_EVERY = 200, 1000
"""The documents that are compared: the first ones, then one in so many. They cost a second, and then 1%."""

CHECK_CHARACTERS = 20_000
"""Characters of a document that are compared; of a longer document its middle."""

RELOAD_CHARACTERS = 128_000_000
"""Characters after which gigatoken is loaded again: it caches each word that it meets (150 MB after so many)."""

T = TypeVar("T")


class EncodingMismatch(Exception):
    """gigatoken differs from the tokenizer's own library; the message names the document and the difference."""


def encode_exactly(tokenizer: Tokenizer, make: Callable[[Encoder], T]) -> T:
    """Return `make(encoder)`: called with a fast `Encoder`, and again with a slow one after an EncodingMismatch.

    `make` must start from the beginning each time, and must leave nothing of a call that EncodingMismatch ended.
    """
    try:
        return make(Encoder(tokenizer))
    except EncodingMismatch as found:
        logger.warning("%s: all documents are encoded again, by %s alone", str(found), tokenizer.library)
    return make(Encoder(tokenizer, fast=False))  # outside `except`: the error keeps the first call's memory alive


class Encoder:
    """Encodes like a `Tokenizer`, with gigatoken if possible.

    `name`: the library that encodes, with its version. `compared`: number of documents that were compared and equal.
    """

    def __init__(self, tokenizer: Tokenizer, fast: bool = True) -> None:
        self._tokenizer = tokenizer
        self._load: Any
        self._fast: Any
        self._load, self._fast = _loaded(tokenizer) if fast else (None, None)
        self._until_reload, self._seen, self.compared = RELOAD_CHARACTERS, 0, 0
        library = "gigatoken" if self._fast else tokenizer.library
        self.name = f"{library} {importlib.metadata.version(library)}"

    @property
    def record(self) -> dict[str, Any]:
        """Return the entries of a manifest's record."""
        return {"encoder": self.name, "compared_documents": self.compared}

    def encode(self, texts: Sequence[str], names: Sequence[str] | None = None) -> list[np.ndarray]:
        """Return the ids of each text, int32 arrays, without BOS and EOS. `names`: of the documents, for messages.

        Raises EncodingMismatch, after which the ids of earlier calls may be wrong too.
        """
        if self._fast is None:
            return self._tokenizer.encode(texts, names)
        found = []
        for at, text in enumerate(texts):
            name = names[at] if names else f"document {self._seen}"
            found.append(self._ids(text, name))
            if self._seen < CHECK_FIRST or self._seen % CHECK_EVERY == 0:
                self._compare(text, found[-1], name)
            self._seen += 1
        return found

    def _ids(self, text: str, name: str) -> np.ndarray:
        assert self._load is not None
        if self._until_reload < 0:
            self._fast = None  # frees its memory before the next is loaded
            self._fast, self._until_reload = self._load(), RELOAD_CHARACTERS
        self._until_reload -= len(text)
        try:
            return self._fast.encode(text).view(np.int32)
        except BaseException as error:
            if is_fault(error):
                raise EncodingMismatch(f"{name} cannot be encoded by {self.name} ({_line(error)})") from None
            raise

    def _compare(self, text: str, found: np.ndarray, name: str) -> None:
        if len(text) > CHECK_CHARACTERS:
            begin = (len(text) - CHECK_CHARACTERS) // 2
            text = text[begin : begin + CHECK_CHARACTERS]
            found = self._ids(text, name)
        (expected,) = self._tokenizer.encode([text], [name])
        if not np.array_equal(found, expected):
            shorter = min(len(found), len(expected))
            at = next(iter(np.flatnonzero(found[:shorter] != expected[:shorter]).tolist()), shorter)
            raise EncodingMismatch(
                f"{name} has other ids by {self.name} than by {self._tokenizer.library}, from token {at} on: "
                f"{found[at : at + 4].tolist()} instead of {expected[at : at + 4].tolist()}"
            )
        self.compared += 1


def _loaded(tokenizer: Tokenizer) -> tuple[Callable[[], Any] | None, Any]:
    """Return (a function that loads gigatoken's tokenizer again, the loaded one).

    Both are None if it is not installed or cannot load this one.
    """
    try:
        import gigatoken
    except ImportError as error:
        logger.info("gigatoken cannot be imported (%s): %s encodes instead, which is slower", error, tokenizer.library)
        return None, None
    package = files.read_json(tokenizer.package)
    if feature := foreign_feature(package):
        logger.info("gigatoken is not used for a tokenizer with %s: %s encodes instead", feature, tokenizer.library)
        return None, None
    # a literal </s> in a text is only text; added tokens that are not special are matched in texts by tokenizers too
    package["added_tokens"] = [token for token in package["added_tokens"] if not token["special"]]
    package["post_processor"] = None
    load = functools.partial(gigatoken.Tokenizer.from_json, json.dumps(package))
    try:
        return load, load()
    except BaseException as error:
        if not is_fault(error):
            raise
        logger.info("gigatoken cannot load this tokenizer (%s): %s encodes instead", _line(error), tokenizer.library)
        return None, None


def foreign_feature(package: Mapping[str, Any]) -> str | None:
    """Return a feature of a tokenizer.json in which gigatoken may differ from tokenizers; None without one.

    gigatoken 0.10 loads some of them and ignores them: `single_word`, `use_regex: false`, the behavior of a Split, the
    members of a sequence beside it. So only what a test has compared is let through.
    """
    model, normalizer, pre_tokenizer = package["model"], package.get("normalizer"), package.get("pre_tokenizer")
    if model.get("type", "BPE") != "BPE":
        return None  # gigatoken says by itself that it has no other model
    for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(key):
            return f"model.{key}"
    if model.get("byte_fallback"):
        members = (normalizer or {}).get("normalizers", [normalizer])
        known = (
            None,
            {"type": "Prepend", "prepend": SPACE},
            {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
        )
        if any(member not in known for member in members):
            return f"the normalizer {json.dumps(normalizer):.100}"
        if pre_tokenizer is not None and pre_tokenizer["type"] != "Metaspace":
            return f"the pre-tokenizer {pre_tokenizer['type']} beside byte_fallback"
    else:
        if normalizer not in (None, {"type": "NFC"}):
            return f"the normalizer {json.dumps(normalizer):.100}"
        steps = (pre_tokenizer or {}).get("pretokenizers", [pre_tokenizer or {}])
        split, last = steps[:-1], steps[-1]
        plain = [step["type"] == "Split" and step["behavior"] == "Isolated" and not step["invert"] for step in split]
        is_plain = plain in ([], [True]) and last.get("type") == "ByteLevel"
        if not (is_plain and last["use_regex"] != bool(split) and not (split and last["add_prefix_space"])):
            return f"the pre-tokenizer {json.dumps(pre_tokenizer):.100}"
    for token in package["added_tokens"]:
        flags = [flag for flag in ("single_word", "lstrip", "rstrip") if token.get(flag)]
        if token.get("normalized") and normalizer is not None:
            flags.append("normalized")
        if not token["special"] and (flags or SPACE in token["content"]):
            return f"the added token {token['content']!r} ({', '.join(flags) or 'a mark of a space'})"
    return None


def _line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
