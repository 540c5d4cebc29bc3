"""The tokenizer of a prompt, with ids as in training or in transformers, and the streaming decoder of new tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stages.lib import files
from stages.lib.errors import UserError
from stages.lib.tokenizer.tokenizer import PACKAGE, Tokenizer, library_errors, load_package

if TYPE_CHECKING:
    import tokenizers

TOKENIZER, TOKENIZER_CONFIG = PACKAGE
MAX_PENDING = 8  # tokens; a character of UTF-8 has at most 4 bytes, and a token at least one


class PromptTokenizer:
    """Encodes prompts and decodes ids. `vocab_size`: number of ids. `ends`: the ids that end a text.

    `num_base_tokens`: number of ids without added tokens, for which some models have no embedding. `first`: the id of
    an empty prompt, since a model needs at least one token; None if unknown.
    """

    def __init__(
        self, package: tokenizers.Tokenizer, encode: Callable[[str], list[int]], first: int | None, ends: set[int]
    ) -> None:
        self.package, self._encode, self.first, self.ends = package, encode, first, ends
        self.vocab_size = 1 + max(package.get_vocab(with_added_tokens=True).values())
        self.num_base_tokens = package.get_vocab_size(with_added_tokens=False)

    def encode(self, prompt: str) -> list[int]:
        """Return the ids of a text, with BOS in front if the tokenizer adds it."""
        try:
            prompt.encode()
        except UnicodeEncodeError:
            raise UserError("a prompt must be UTF-8") from None
        with library_errors("a prompt cannot be encoded by the model's tokenizer"):
            ids = self._encode(prompt)
        if ids:
            return ids
        if self.first is None:
            raise UserError("a prompt must have at least one token, since the tokenizer has no BOS; got none")
        return [self.first]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids; bytes that are not UTF-8 become U+FFFD."""
        return self.package.decode(ids, skip_special_tokens=False)


def first_token(tokenizer: Mapping[str, Any]) -> int:
    """Return the id before a document's first token in training: BOS, or the EOS of the document before.

    `tokenizer`: {"bos", "eos", "bos_added"}.
    """
    return tokenizer["bos"] if tokenizer["bos_added"] else tokenizer["eos"]


def of_manifest(path: Path | str, bos_added: bool = True) -> PromptTokenizer:
    """Return the PromptTokenizer of a tokenizer's manifest. `bos_added`: documents begin with BOS."""
    tokenizer = Tokenizer(path)
    first = first_token({"bos": tokenizer.bos, "eos": tokenizer.eos, "bos_added": bos_added})

    def encode(prompt: str) -> list[int]:
        return [tokenizer.bos] * bos_added + tokenizer.encode([prompt])[0].tolist()

    return PromptTokenizer(_package(tokenizer.package), encode, first, {tokenizer.eos})


def of_directory(directory: Path) -> PromptTokenizer:
    """Return the PromptTokenizer of a Hugging Face directory, which gives the same ids as transformers.

    Raises UserError if it has no tokenizer.json.
    """
    package = _package(directory / TOKENIZER)
    options = _read(directory / TOKENIZER_CONFIG)
    package.encode_special_tokens = bool(options.get("split_special_tokens"))  # a literal </s> is then only text
    config = _read(directory / "config.json") | _read(directory / "generation_config.json")
    ends = config.get("eos_token_id")
    ends = ends if isinstance(ends, list) else [ends]
    return PromptTokenizer(
        package, lambda prompt: package.encode(prompt).ids, config.get("bos_token_id"), set(ends) - {None}
    )


def _read(path: Path) -> dict[str, Any]:
    """Read a JSON file; an empty mapping if it is missing. Raises UserError unless it is a mapping."""
    found = files.read_json(path) if path.exists() else {}
    if not isinstance(found, dict):
        raise UserError(f"{path} must hold the mapping that transformers writes, got {type(found).__name__}")
    return found


def _package(path: Path) -> tokenizers.Tokenizer:
    if not path.exists():
        raise UserError(f"{path.parent} lacks {path.name}; name a tokenizer with --tokenizer")
    try:
        package = load_package(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} must be a tokenizer of Hugging Face's tokenizers: {error}") from None
    package.no_truncation()
    package.no_padding()
    return package


class Stream:
    """The text of tokens that follow the ids of a prompt one by one, in pieces that are never revised.

    A character may be spread over several tokens, which are pending until it is complete. Tokens are decoded after the
    preceding ones, since some decoders drop a space at the beginning of a text.
    """

    def __init__(self, tokenizer: PromptTokenizer, prompt: Sequence[int]) -> None:
        self.tokenizer, self.before = tokenizer, list(prompt)
        self.pending: list[int] = []

    def push(self, token: int) -> str:
        """Add a token and return the text that is now certain: empty while a character is not complete."""
        self.pending.append(token)
        text = self._decoded()
        if not text or (text.endswith("\ufffd") and len(self.pending) < MAX_PENDING):
            return ""
        self.before, self.pending = self.pending, []
        return text

    def finish(self) -> str:
        """Return the text of the pending tokens."""
        return self._decoded() if self.pending else ""

    def _decoded(self) -> str:
        before = self.tokenizer.decode(self.before)
        after = self.tokenizer.decode(self.before + self.pending)
        if after.startswith(before):
            return after[len(before) :]
        return self.tokenizer.decode(self.pending)  # invalid UTF-8 changes the decoding of valid bytes beside it
