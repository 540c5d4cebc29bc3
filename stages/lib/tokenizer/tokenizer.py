"""A tokenizer by its manifest: trained by SentencePiece, or a custom one of Hugging Face's tokenizers.

Both have a package that Hugging Face's libraries read; that of a trained one is equivalent to its SentencePiece model.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from stages.lib import files, manifest
from stages.lib.errors import UserError, is_fault
from stages.lib.manifest import TokenizerManifest

if TYPE_CHECKING:
    import tokenizers as library
    from sentencepiece import SentencePieceProcessor

T = TypeVar("T")

MODEL = "tokenizer.model"
PACKAGE = ("tokenizer.json", "tokenizer_config.json")
SPACE = "\u2581"
CONTROL = "<(?=(0x[0-9A-F]{2}|/?s|unk)>)"
"""The name of a control or byte piece in a text; unigram in the package would encode it as the piece itself."""

SENTINELS = ("prefix", "middle", "suffix")
"""Names of the special tokens of fill-in-the-middle in manifests: each stands before that part of a text."""


class Tokenizer:
    """A tokenizer by the path of its manifest: `bos`, `eos`, `vocab_size`, `digest`.

    `fill_in_the_middle`: {name of SENTINELS: id}; None for a tokenizer without these tokens.
    `package`: the path of its tokenizer.json. `library`: the library of `encode`, whose ids are the reference.

    Raises UserError naming the file if one is missing or changed since the manifest was written.
    """

    def __init__(self, path: Path | str) -> None:
        self.manifest = manifest.read(path, "train_tokenizer")
        for name, described in self.manifest.identity["outputs"].items():
            manifest.check_content(self.manifest.directory / name, described, path)
        self.digest = self.manifest.digest
        self.bos, self.eos = self.manifest.identity["bos"], self.manifest.identity["eos"]
        self.vocab_size = self.manifest.identity["vocab_size"]
        self.fill_in_the_middle = self.manifest.identity.get("fill_in_the_middle")
        self.package = self.manifest.directory / PACKAGE[0]
        self._processor: SentencePieceProcessor | None = None
        self._encode: Callable[[Sequence[str]], list[np.ndarray]]
        # unigram: SentencePiece adds scores in float32, and the package in float64 breaks ties differently. A model is
        # scored and used with the package, so its ids are the reference.
        is_trained, model = "pieces" in self.manifest.identity, self.manifest.directory / MODEL
        if is_trained:  # the model is no output, since it holds its trainer's arguments
            record = self.manifest.record
            manifest.check_content(model, {"bytes": record["model_bytes"], "sha256": record["model_sha256"]}, path)
        if is_trained and self.manifest.identity["recipe"].get("model", "bpe") == "bpe":
            import sentencepiece

            self.library, self._processor = "sentencepiece", sentencepiece.SentencePieceProcessor(model_file=str(model))
            self._encode = functools.partial(self._processor.encode, return_type="numpy")
        else:
            self.library, self._encode = "tokenizers", package_encoder(self.package)

    def encode(self, texts: Sequence[str], names: Sequence[str] | None = None) -> list[np.ndarray]:
        """Return the ids of each text, int32 arrays, without BOS and EOS. A literal `</s>` in a text is only text.

        `names`: of the documents. Raises UserError with the name of the first text that the library cannot encode.
        """
        return self._encode_with(self._encode, texts, names)

    def _encode_with(
        self, encode: Callable[[Sequence[str]], list[T]], texts: Sequence[str], names: Sequence[str] | None
    ) -> list[T]:
        """Return encode(texts); after an error, which no library says of which text it is, encode them one by one."""
        try:
            return encode(texts)
        except BaseException as error:
            if not is_fault(error) or len(texts) < 2:
                with library_errors(self._refusal(texts[:1], names)):
                    raise
        return [
            one
            for number, text in enumerate(texts)
            for one in self._encode_with(encode, [text], names and names[number : number + 1])
        ]

    def _refusal(self, texts: Sequence[str], names: Sequence[str] | None) -> str:
        name = names[0] if names else f"the text {texts[0][:60]!r}" if texts else "no text"
        return f"{name} cannot be encoded by the tokenizer {self.package}: change the tokenizer, or leave the text out"

    def encode_markup(
        self, texts: Sequence[str], names: Sequence[str] | None = None
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return (ids, characters) of each text in which special tokens are written as text, as by chat templates.

        ids: int32 [n]. characters: int64 [n, 2], begin and end of each id in the text. These are the ids of
        transformers if `split_special_tokens` is false; nothing is added at the ends. `names`, errors: as of `encode`.
        """
        package = self._decoder

        def encode(texts: Sequence[str]) -> list[Any]:
            return package.encode_batch(list(texts), add_special_tokens=False)

        found = self._encode_with(encode, texts, names)
        return [
            (np.array(one.ids, np.int32), np.array(one.offsets, np.int64).reshape(len(one.ids), 2)) for one in found
        ]

    def special_texts(self) -> list[str]:
        """Return the texts of the special tokens."""
        tokens = self._decoder.get_added_tokens_decoder().values()
        return [token.content for token in tokens if token.special]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, without the special tokens among them."""
        return self._decoder.decode(ids)

    def decode_batch(self, batch: Sequence[np.ndarray]) -> list[str]:
        """Return the texts of several arrays of ids, without the special tokens among them."""
        lists = [ids.tolist() for ids in batch]
        if self._processor is not None:  # three to four times as fast as tokenizers
            return self._processor.decode(lists) if lists else []
        return self._decoder.decode_batch(lists)

    def bytes_of_ids(self) -> np.ndarray:
        """Return the bytes of UTF-8 that each id stands for within a text, int64 [vocab_size]; special tokens have 0.

        Those of a text's ids add up to the bytes of the text, unless a normalizer changed it.
        """
        package = self._decoder
        words, described = package.get_vocab(with_added_tokens=False), json.loads(package.to_str())
        decoders = json.dumps(described["decoder"])
        if '"ByteLevel"' in decoders:  # a character per byte
            lengths = {number: len(word) for word, number in words.items()}
        else:  # behind another id, since decoders change the begin of a text
            before = package.encode("a", add_special_tokens=False).ids[:1]
            size = len(package.decode(before).encode())
            texts = package.decode_batch([[*before, number] for number in words.values()])
            lengths = {number: len(text.encode()) - size for number, text in zip(words.values(), texts, strict=True)}
        if '"ByteFallback"' in decoders:  # one byte alone may be no text
            lengths |= {number: 1 for word, number in words.items() if re.fullmatch("<0x[0-9A-F]{2}>", word)}
        for number, token in package.get_added_tokens_decoder().items():
            lengths[number] = 0 if token.special else len(token.content.encode())
        sizes = np.zeros(self.vocab_size, np.int64)
        sizes[[*lengths]] = np.maximum(0, [*lengths.values()])
        return sizes

    @functools.cached_property
    def _decoder(self) -> library.Tokenizer:
        return load_package(self.package.read_text(encoding="utf-8"))


def special_tokens(tokenizer: TokenizerManifest) -> dict[str, str]:
    """Return {"bos_token": text, ...} of a tokenizer's manifest, as the tokenizer of an export has them.

    The token that fills batches up is the unknown one, which no text becomes where bytes are tokens; without one it is
    EOS.
    """
    config = files.read_json_object(tokenizer.output(PACKAGE[1]))
    found = {name: config[name] for name in ("bos_token", "eos_token", "unk_token") if name in config}
    return found | {"pad_token": config["eos_token" if tokenizer.identity.get("unk") is None else "unk_token"]}


def load_package(text: str) -> library.Tokenizer:
    """Return the tokenizer of a tokenizer.json's text. Raises ValueError with the reason, also for a panic of Rust."""
    import tokenizers as library

    try:
        return library.Tokenizer.from_str(text)
    except BaseException as error:
        if is_fault(error):
            raise ValueError(str(error).partition("\n")[0]) from None
        raise


@contextlib.contextmanager
def library_errors(sentence: str) -> Iterator[None]:
    """Raise errors of a library that encodes, panics of Rust among them, as a UserError: `sentence` and the reason."""
    try:
        yield
    except BaseException as error:
        if not is_fault(error) or isinstance(error, (UserError, MemoryError)):
            raise
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise UserError(f"{sentence} ({reason:.200})") from None


def package_encoder(path: Path | str) -> Callable[[Sequence[str]], list[np.ndarray]]:
    """Return a function that encodes texts by tokenizers with a tokenizer.json, without special tokens."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # one thread, like SentencePiece: parts run in parallel
    import tokenizers

    package = tokenizers.Tokenizer.from_file(str(path))
    package.encode_special_tokens = True

    def encode(texts: Sequence[str]) -> list[np.ndarray]:
        return [np.array(found.ids, np.int32) for found in package.encode_batch_fast(texts, add_special_tokens=False)]

    return encode


def pieces_of(processor: SentencePieceProcessor) -> list[list[Any]]:
    """Return [[piece, score, kind]] of all ids: the identity of a tokenizer, without the other content of its file."""
    return [[processor.id_to_piece(i), processor.get_score(i), _kind(processor, i)] for i in range(len(processor))]


def _kind(processor: SentencePieceProcessor, number: int) -> str:
    for kind in ("unknown", "control", "byte", "unused"):
        if getattr(processor, f"is_{kind}")(number):
            return kind
    return "normal"


def write_package(directory: Path, processor: SentencePieceProcessor, kind: str, control: Sequence[str] = ()) -> None:
    """Write tokenizer.json and tokenizer_config.json with which transformers gives SentencePiece's ids after BOS.

    `kind`: bpe or unigram. `control`: further control pieces, which are special tokens too. The tokenizer class must be
    PreTrainedTokenizerFast: LlamaTokenizer rebuilds the pre-tokenizer and gives other ids. `split_special_tokens` keeps
    a literal `</s>` in a text from becoming the control token.
    """
    bos, eos, unk = (processor.id_to_piece(i) for i in (processor.bos_id(), processor.eos_id(), processor.unk_id()))
    special = [
        {"id": processor.piece_to_id(piece), "content": piece, "single_word": False, "lstrip": False, "rstrip": False}
        | {"normalized": False, "special": True}
        for piece in (unk, bos, eos, *control)
    ]
    in_text = CONTROL + "".join(f"|<(?={re.escape(piece[1:])})" for piece in control)
    # cuts a text after each match, so that no piece crosses the cut
    cut = {"type": "Split", "pattern": {"Regex": in_text}, "behavior": "MergedWithPrevious", "invert": False}
    package = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
        "pre_tokenizer": None if kind == "bpe" else cut,
        "post_processor": bos_in_front(bos, processor.bos_id()),
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
            ],
        },
        "model": _bpe(processor, unk) if kind == "bpe" else _unigram(processor),
    }
    write_files(directory, package, bos, eos, unk)


def bos_in_front(bos: str, number: int) -> dict[str, Any]:
    """Return a post-processor that puts BOS, a piece and its id, before each text."""
    template = [{"SpecialToken": {"id": bos, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    pair = [{"SpecialToken": {"id": bos, "type_id": 1}}, {"Sequence": {"id": "B", "type_id": 1}}]
    return {
        "type": "TemplateProcessing",
        "single": template,
        "pair": template + pair,
        "special_tokens": {bos: {"id": bos, "ids": [number], "tokens": [bos]}},
    }


def write_files(directory: Path, package: dict[str, Any], bos: str, eos: str, unk: str | None = None) -> None:
    """Write the two files of a package: `package` as tokenizer.json, and the tokenizer_config.json of transformers."""
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": bos,
        "eos_token": eos,
        **({"unk_token": unk} if unk is not None else {}),
        "add_bos_token": True,
        "split_special_tokens": True,
        "clean_up_tokenization_spaces": False,
        "model_max_length": int(1e30),
    }
    with files.atomic(directory / "tokenizer.json", "w") as file:
        json.dump(package, file, ensure_ascii=False)
    files.write_json(directory / "tokenizer_config.json", config)


def _bpe(processor: SentencePieceProcessor, unk: str) -> dict[str, Any]:
    vocabulary = {processor.id_to_piece(i): i for i in range(len(processor))}
    normal = {piece: i for piece, i in vocabulary.items() if _kind(processor, i) == "normal"}
    merges = []
    for piece, number in normal.items():
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in normal and right in normal:
                merges.append((-processor.get_score(number), normal[left], normal[right], [left, right]))
    # SentencePiece merges the pair whose result has the highest score, the leftmost first: sort by the result
    merges.sort(key=lambda merge: merge[:3])
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": unk,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": True,
        "byte_fallback": True,
        "ignore_merges": False,
        "vocab": vocabulary,
        "merges": [pair for *_, pair in merges],
    }


def _unigram(processor: SentencePieceProcessor) -> dict[str, Any]:
    pieces = [[processor.id_to_piece(i), processor.get_score(i)] for i in range(len(processor))]
    return {"type": "Unigram", "unk_id": processor.unk_id(), "byte_fallback": True, "vocab": pieces}
