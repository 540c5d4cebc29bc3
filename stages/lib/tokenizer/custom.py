"""A custom tokenizer: a tokenizer.json that Hugging Face's tokenizers can read, checked and packaged for a corpus.

The package gives the same ids for a text. It differs in the post-processing: BOS goes in front and nothing behind,
without truncation and padding. No text becomes a special token.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stages.lib import files
from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.manifest_types import TokenIds
from stages.lib.tokenizer import tokenizer as tokenizers
from stages.lib.tokenizer.edge_cases import EDGE_CASES

if TYPE_CHECKING:
    import tokenizers as library

MAX_IDS = 1 << 24
CHARACTERS = 64  # characters of a text in which unknown ones are searched


def package_of(path: Path, bos: str, eos: str, where: str, sentinels: Mapping[str, str]) -> dict[str, Any]:
    """Return the tokenizer.json to write for the one at `path`, as JSON data, with the special tokens `bos` and `eos`.

    `where`: the key of the recipe, for messages. `sentinels`: {name: piece} of the special tokens of
    fill-in-the-middle. Raises UserError if the file is not valid or cannot be used.
    """
    try:
        package = files.parse_json(path.read_text(encoding="utf-8"))
        if not isinstance(package, dict):
            raise ValueError("it is no JSON object")
        package.setdefault("added_tokens", [])
        loaded = _loaded(package)
    except OSError as error:
        raise UserError(
            f"{where}.path must name a tokenizer.json, and {path} cannot be read: {error.strerror}"
        ) from None
    except ValueError as error:
        raise UserError(
            f"{where}.path must be a tokenizer.json that tokenizers can read, got {path}: {error}"
        ) from None
    _check_ids(loaded.get_vocab(with_added_tokens=True), where, path)
    if package["model"].get("dropout"):
        raise UserError(f"{where}.path must have no dropout, which gives a text other ids each time, got {path}")
    for name, piece in (("bos", bos), ("eos", eos)):
        _make_special(package, piece, f"{where}.{name}", path)
    for name, piece in sentinels.items():
        _make_special(package, piece, f"{where}.fill_in_the_middle.{name}", path)
        if piece == unknown_of(package):
            raise UserError(
                f"{where}.fill_in_the_middle.{name} must be a token that no text becomes, got {piece!r}, the unknown "
                f"token of {path}"
            )
    number = _loaded(package).token_to_id(bos)
    assert number is not None
    package |= {"truncation": None, "padding": None, "post_processor": tokenizers.bos_in_front(bos, number)}
    with tokenizers.library_errors(f"{where}.path must be a tokenizer that encodes any text, and {path} does not"):
        _check_unknown(package, {"bos": bos, "eos": eos}, where, path)
        _check_specials(package, (bos, eos), where, path)
    return package


def _check_ids(vocabulary: Mapping[str, int], where: str, path: Path) -> None:
    """Raise UserError if two tokens have one id, which decodes to one of them, or an id is out of all proportion."""
    token_of: dict[int, str] = {}
    for token, number in vocabulary.items():
        first = token_of.setdefault(number, token)
        if first != token:
            first, second = sorted((first, token))
            raise UserError(
                f"{where}.path must give each token an id of its own, and in {path} {first!r:.60} and {second!r:.60} "
                f"both have {number}"
            )
        if number >= MAX_IDS:
            raise UserError(f"{where}.path must have ids below {MAX_IDS:,}, and in {path} {token!r:.60} has {number:,}")


def _loaded(package: Mapping[str, Any]) -> library.Tokenizer:
    made = tokenizers.load_package(json.dumps(package))
    made.encode_special_tokens = True
    return made


def _make_special(package: dict[str, Any], piece: str, where: str, path: Path) -> None:
    """Make a token special in `package`, so that no text becomes it."""
    number = _loaded(package).token_to_id(piece)
    if number is None:
        raise UserError(f"{where} must be a token of {path}, got {piece!r}")
    others = [token for token in package["added_tokens"] if token["id"] != number]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    special = {"id": number, "content": piece, **flags, "special": True}
    package["added_tokens"] = sorted([*others, special], key=lambda token: token["id"])


def _check_unknown(package: Mapping[str, Any], ends: Mapping[str, str], where: str, path: Path) -> None:
    """Raise UserError if BOS or EOS is the unknown token as well, and some text becomes it.

    `ends`: {"bos": piece, "eos": piece}. In GPT-2's tokenizer one token is all three, and no text becomes it, since
    every byte is known.
    """
    unknown = unknown_of(package)
    name = next((name for name, piece in ends.items() if piece == unknown), None)
    if name is None or unknown is None:
        return
    loaded = _loaded(package)
    number = loaded.token_to_id(unknown)

    def has_it(text: str) -> bool:
        return number in loaded.encode(text, add_special_tokens=False).ids

    found = next(filter(has_it, itertools.chain(EDGE_CASES, _all_characters())), None)
    if found is not None:
        text = next(filter(has_it, found), found)  # one character, or a word that is unknown as a whole
        raise UserError(
            f"{where}.{name} must be a token that no text becomes, got {unknown!r}, the unknown token of {path}: "
            f"the text {text!a} becomes it"
        )


def _all_characters() -> Iterator[str]:
    """Yield texts with all characters of Unicode: encoding all of them takes a second."""
    for begin in range(0, sys.maxunicode + 1, CHARACTERS):
        text = "".join(map(chr, range(begin, begin + CHARACTERS)))
        yield text.encode(errors="ignore").decode()  # without surrogates


def _check_specials(package: Mapping[str, Any], ends: tuple[str, str], where: str, path: Path) -> None:
    """Raise UserError if a special token's name in a text becomes a special token.

    The unknown token may, unless it is one of `ends`, BOS and EOS.
    """
    loaded, unknown = _loaded(package), unknown_of(package)
    special = {token["id"]: token["content"] for token in package["added_tokens"] if token["special"]}
    for piece in special.values():
        for text in (piece, f" {piece} ", f"a{piece}b"):
            for number in loaded.encode(text, add_special_tokens=False).ids:
                if number in special and (special[number] != unknown or unknown in ends):
                    raise UserError(
                        f"{where}.path must give no text the special token {special[number]!r}: in {path} the text "
                        f"{text!r} becomes it"
                    )


def unknown_of(package: Mapping[str, Any]) -> str | None:
    """Return the unknown token of a tokenizer; None if it has none."""
    model = package["model"]
    if model.get("unk_id") is not None:
        return model["vocab"][model["unk_id"]][0]
    return model.get("unk_token")


def identity_of(package: Mapping[str, Any], bos: str, eos: str, sentinels: Mapping[str, str]) -> TokenIds:
    """Return the number of ids of a package, and the ids of the two tokens and of `sentinels`, {name: piece}."""
    loaded = _loaded(package)

    def id_of(piece: str) -> int:
        number = loaded.token_to_id(piece)
        assert number is not None
        return number

    vocab_size = 1 + max(loaded.get_vocab(with_added_tokens=True).values())
    found: TokenIds = {"vocab_size": vocab_size, "bos": id_of(bos), "eos": id_of(eos)}
    if sentinels:
        found["fill_in_the_middle"] = {name: id_of(piece) for name, piece in sentinels.items()}
    return found


def check_written(directory: Path, where: str) -> None:
    """Raise UserError unless transformers gives the ids of the package in `directory`.

    Logs a warning if texts are not decoded to themselves.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # all files are local
    from transformers import AutoTokenizer

    lost = []
    with tokenizers.library_errors(f"{where}.path must be a tokenizer that encodes any text"):
        theirs = AutoTokenizer.from_pretrained(directory)
        ours = _loaded(json.loads((directory / tokenizers.PACKAGE[0]).read_bytes()))
        for text in EDGE_CASES:
            ids = ours.encode(text, add_special_tokens=False).ids
            if theirs.encode(text, add_special_tokens=False) != ids:
                raise UserError(
                    f"{where}.path must give the same ids by transformers as by tokenizers, and differs on {text!r}"
                )
            if ours.decode(ids, skip_special_tokens=False) != text:
                lost.append(text)
    if lost:
        logger.warning(
            "%s of %s edge cases are not decoded to the text that was encoded (a normalizer, or unknown characters), "
            "such as %s",
            *(len(lost), len(EDGE_CASES), ascii(lost[0])),
        )
