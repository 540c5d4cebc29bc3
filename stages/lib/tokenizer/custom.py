"""A user's own tokenizer.json, of any kind that Hugging Face's tokenizers read: checked, and packaged for a corpus.

The package gives the same ids of a text. It differs in what stands around them: BOS goes in front and nothing behind,
and nothing is cut or filled up. A special token never arises from a text.
"""

import itertools
import json
import os
import sys

from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.tokenizer import tokenizer as tokenizers
from stages.lib.tokenizer.edge_cases import EDGE_CASES

CHARACTERS = 64  # of a text to look for unknown ones in


def package_of(path, bos, eos, where):
    """The tokenizer.json to write for the one at `path`, as data, whose special tokens `bos` and `eos` are.

    `where`: the key of the recipe, for messages. Raises UserError where the file is none, or cannot serve.
    """
    try:
        package = json.loads(path.read_bytes())
        package.setdefault("added_tokens", [])
        _loaded(package)
    except OSError as error:
        raise UserError(
            f"{where}.path must name a tokenizer.json, and {path} cannot be read: {error.strerror}"
        ) from None
    except Exception as error:  # the library raises nothing narrower
        line = str(error).partition("\n")[0]
        raise UserError(f"{where}.path must be a tokenizer.json that tokenizers can read, got {path}: {line}") from None
    if package["model"].get("dropout"):
        raise UserError(f"{where}.path must have no dropout, by which a text has other ids each time, got {path}")
    for name, piece in (("bos", bos), ("eos", eos)):
        _make_special(package, piece, f"{where}.{name}", path)
    number = _loaded(package).token_to_id(bos)
    package |= {"truncation": None, "padding": None, "post_processor": tokenizers.bos_in_front(bos, number)}
    _check_unknown(package, {"bos": bos, "eos": eos}, where, path)
    _check_specials(package, (bos, eos), where, path)
    return package


def _loaded(package):
    import tokenizers as library

    made = library.Tokenizer.from_str(json.dumps(package))
    made.encode_special_tokens = True
    return made


def _make_special(package, piece, where, path):
    """Let a token be a special one in `package`, so that no text becomes it."""
    number = _loaded(package).token_to_id(piece)
    if number is None:
        raise UserError(f"{where} must be a token of {path}, got {piece!r}")
    others = [token for token in package["added_tokens"] if token["id"] != number]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    special = {"id": number, "content": piece, **flags, "special": True}
    package["added_tokens"] = sorted([*others, special], key=lambda token: token["id"])


def _check_unknown(package, ends, where, path):
    """Raise UserError where BOS or EOS is the token for unknown text as well, and such text exists.

    `ends`: {"bos": piece, "eos": piece}. Of GPT-2's kind one token is all three, and no text has it: bytes are known.
    """
    unknown = unknown_of(package)
    name = next((name for name, piece in ends.items() if piece == unknown), None)
    if name is None:
        return
    loaded = _loaded(package)
    number = loaded.token_to_id(unknown)

    def has_it(text):
        return number in loaded.encode(text, add_special_tokens=False).ids

    found = next(filter(has_it, itertools.chain(EDGE_CASES, _all_characters())), None)
    if found is not None:
        text = next(filter(has_it, found), found)  # one character, or a word that is unknown as a whole
        raise UserError(
            f"{where}.{name} must be a token that no text has, got {unknown!r}, which stands for what {path} does not "
            f"know: the text {ascii(text)} has it"
        )


def _all_characters():
    """Texts that hold all characters of Unicode: in all, encoding them takes a second."""
    for begin in range(0, sys.maxunicode + 1, CHARACTERS):
        text = "".join(map(chr, range(begin, begin + CHARACTERS)))
        yield text.encode(errors="ignore").decode()  # without surrogates


def _check_specials(package, ends, where, path):
    """Raise UserError where the name of a special token in a text becomes that token all the same.

    The token for unknown text may, unless it is one of `ends`, BOS and EOS.
    """
    loaded, unknown = _loaded(package), unknown_of(package)
    special = {token["id"]: token["content"] for token in package["added_tokens"] if token["special"]}
    for piece in special.values():
        for text in (piece, f" {piece} ", f"a{piece}b"):
            for number in loaded.encode(text, add_special_tokens=False).ids:
                if number in special and (special[number] != unknown or unknown in ends):
                    raise UserError(
                        f"{where}.path must keep {special[number]!r} for itself: in {path} the text {text!r} becomes it"
                    )


def unknown_of(package):
    """The token that stands for what a tokenizer does not know; None where there is none."""
    model = package["model"]
    if model.get("unk_id") is not None:
        return model["vocab"][model["unk_id"]][0]
    return model.get("unk_token")


def facts_of(package, bos, eos):
    """{"vocabulary", "bos", "eos"} of a package: how many ids it has, and those of the two tokens."""
    loaded = _loaded(package)
    vocab_size = 1 + max(loaded.get_vocab(with_added_tokens=True).values())
    return {"vocab_size": vocab_size, "bos": loaded.token_to_id(bos), "eos": loaded.token_to_id(eos)}


def check_written(directory, where):
    """Raise UserError unless transformers gives the ids of the package in `directory`; warn of texts that get lost."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything is local
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(directory)
    ours = _loaded(json.loads((directory / tokenizers.PACKAGE[0]).read_bytes()))
    lost = []
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
            "%s of %s hard texts do not come back from their ids (a normalizer, or unknown characters), such as %s",
            *(len(lost), len(EDGE_CASES), ascii(lost[0])),
        )
