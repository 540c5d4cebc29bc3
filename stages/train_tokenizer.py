"""Train a SentencePiece tokenizer on a sample of the training text, or take a custom one; package it for transformers.

    python -m stages.train_tokenizer --lists results/sources/code/list.json results/sources/prose/list.json \\
        --recipe '{"vocab_size": 4096, "sample": {"code": 1, "prose": 1}}' \\
        --output results/tokenizers/main/manifest.json

The sample holds no validation documents. Ids: 0 unknown, 1 BOS, 2 EOS, then 256 bytes, then the learned pieces.

    python -m stages.train_tokenizer --output results/tokenizers/main/manifest.json \\
        --recipe '{"path": "llama3/tokenizer.json", "bos": "<|begin_of_text|>", "eos": "<|end_of_text|>"}'

takes a custom tokenizer, a tokenizer.json: nothing is trained, and its ids stay.

`fill_in_the_middle` reserves three special tokens: of a trained tokenizer their ids follow EOS, and a custom one must
have them. No text becomes them.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from stages.lib import files, manifest, stage
from stages.lib import recipe as recipes
from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.manifest import Clock, ListManifest
from stages.lib.manifest_types import FillInTheMiddleIds, TokenizerIdentity, TokenizerRecord
from stages.lib.recipe import identity
from stages.lib.sources import documents, source, spans
from stages.lib.sources.documents import FilterCounts
from stages.lib.sources.entries import TRAIN
from stages.lib.tokenizer import custom
from stages.lib.tokenizer import tokenizer as tokenizers
from stages.lib.tokenizer.tokenizer import SENTINELS

UNK, BOS, EOS = 0, 1, 2
SENTENCE_BYTES = 4192  # SentencePiece's own limit: it drops longer sentences silently
THREADS = 4  # fixed: unigram's pieces depend on it


NAME_OF_SENTINEL = re.compile(r"<[!-~]{1,60}>")
"""A special token of a trained tokenizer. Pieces that are learned never mix letters with other signs."""

RESERVED = re.compile(r"<(/?s|unk|0x[0-9A-Fa-f]{2})>")


@dataclass(frozen=True, kw_only=True)
class SentinelsRecipe:
    """Special tokens for `fill_in_the_middle` of a pretraining."""

    prefix: str = identity("<|fim_prefix|>")
    """The text of the token before the prefix."""

    middle: str = identity("<|fim_middle|>")
    """The text of the token before the middle."""

    suffix: str = identity("<|fim_suffix|>")
    """The text of the token before the suffix."""

    @property
    def pieces(self) -> dict[str, str]:
        """{name: text} of the three tokens."""
        return {name: getattr(self, name) for name in SENTINELS}

    def check(self, where: str) -> None:
        """Raise UserError if two of the tokens are one."""
        for name, piece in self.pieces.items():
            if [*self.pieces.values()].count(piece) > 1:
                raise UserError(f"{where}.{name} must differ from the other two special tokens, got {piece!r}")


@dataclass(frozen=True, kw_only=True)
class TokenizerRecipe:
    """A tokenizer to train, or a custom one."""

    vocab_size: int | None = identity(None, minimum=260, maximum=1 << 20)
    """Number of ids, the 3 special ones and the 256 bytes included."""

    model: str = identity("bpe", choices=("bpe", "unigram"))
    """The algorithm: byte-pair encoding (bpe), or a unigram language model."""

    sample: dict[str, float] | None = identity(None, above=0, needs=("vocab_size",))
    """The sources to train on, each with its weight in the sample."""

    sample_mb: float = identity(100.0, above=0)
    """Size of the sample in millions of bytes; a source that is smaller than its share gives all its text."""

    path: str | None = identity(None, needs=("bos", "eos"))
    """A custom tokenizer in place of all above: a tokenizer.json, relative to the working directory. Only its content
    matters, not its path."""

    bos: str | None = identity(None)
    """The text of the token in `path` that begins a document; if it has none, that of `eos`."""

    eos: str | None = identity(None)
    """The text of the token in `path` that ends a document."""

    fill_in_the_middle: SentinelsRecipe | None = identity(None, switch=True)
    """Special tokens for `fill_in_the_middle` of a pretraining; `{}` for the default names. A tokenizer to train
    reserves them, within its `vocab_size`. That of `path` must have them: StarCoder's are `<fim_prefix>`,
    `<fim_middle>`, `<fim_suffix>`."""

    @property
    def sentinels(self) -> dict[str, str]:
        """{name: text} of the special tokens of `fill_in_the_middle`; {} without it."""
        return {} if self.fill_in_the_middle is None else self.fill_in_the_middle.pieces

    def check(self, where: str) -> None:
        """Raise UserError unless either the fields of a tokenizer to train or those of a custom one are given."""
        for name, piece in self.sentinels.items():
            if self.path is None and (not NAME_OF_SENTINEL.fullmatch(piece) or RESERVED.fullmatch(piece)):
                raise UserError(
                    f"{where}.fill_in_the_middle.{name} must be a name of printable ASCII in angle brackets, such as "
                    f"<|fim_{name}|>, and no token that each tokenizer has, got {piece!a:.100}"
                )
            if self.path is not None and piece in (self.bos, self.eos):
                raise UserError(f"{where}.fill_in_the_middle.{name} must differ from bos and eos, got {piece!r}")
        custom_fields, trained_fields = ("path", "bos", "eos"), ("vocab_size", "sample")
        given = [name for name in custom_fields if getattr(self, name) is not None]
        if "path" in given:
            defaults = TokenizerRecipe.__dataclass_fields__
            for name in (*trained_fields, "model", "sample_mb"):
                if getattr(self, name) != defaults[name].default:
                    raise UserError(f"{where}.{name} must be left out beside {where}.path: nothing is trained")
        elif given:
            raise UserError(
                f"{where}.{given[0]} must be left out without {where}.path: a trained tokenizer has its own tokens"
            )
        else:
            kinds = ("a whole number", "a mapping of sources to weights")
            for name, expected in zip(trained_fields, kinds, strict=True):
                if getattr(self, name) is None:
                    raise UserError(f"{where}.{name} is missing: it must be {expected}, or {where}.path must be given")


def run(arguments: argparse.Namespace, recipe: TokenizerRecipe) -> None:
    """Train a tokenizer or take a custom one, package it, and write the manifest."""
    clock = manifest.Clock(arguments.code)
    files.make_parent(arguments.output)  # before the work, not after it
    for name in (arguments.output.name, tokenizers.MODEL, *tokenizers.PACKAGE):
        files.clear_leftovers(arguments.output.parent / name)
    (package_custom if recipe.path is not None else train)(arguments, recipe, clock)


def package_custom(arguments: argparse.Namespace, recipe: TokenizerRecipe, clock: Clock) -> None:
    """Package a custom tokenizer, and write the manifest."""
    assert recipe.path is not None and recipe.bos is not None and recipe.eos is not None
    where, directory = arguments.stage_name, arguments.output.parent
    package = custom.package_of(Path(recipe.path), recipe.bos, recipe.eos, where, recipe.sentinels)
    tokenizers.write_files(directory, package, recipe.bos, recipe.eos, custom.unknown_of(package))
    custom.check_written(directory, where)
    identity_: TokenizerIdentity = {
        # not the file's path: its content is in the outputs
        "recipe": {key: value for key, value in recipes.written(recipe, "identity").items() if key != "path"},
        **custom.identity_of(package, recipe.bos, recipe.eos, recipe.sentinels),
        "outputs": {name: manifest.describe(directory / name) for name in tokenizers.PACKAGE},
    }
    record: TokenizerRecord = {**clock.record(), "taken": {"path": recipe.path, **manifest.describe(recipe.path)}}
    manifest.write(arguments.output, arguments.stage_name, identity_, record)


def train(arguments: argparse.Namespace, recipe: TokenizerRecipe, clock: Clock) -> None:
    """Train a tokenizer on the lists' sources, package it, and write the manifest."""
    import sentencepiece

    assert recipe.sample is not None
    lists = {name: (listed, of_source) for listed, name, of_source in map(source.read_list, arguments.lists)}
    for name in recipe.sample:
        if name not in lists:
            raise UserError(f"train_tokenizer.sample.{name} must be one of the sources in --lists: {', '.join(lists)}")
    total = sum(recipe.sample.values())
    limits = {name: int(recipe.sample_mb * 1e6 * weight / total) for name, weight in recipe.sample.items()}
    sample = b"".join(_sample(*lists[name], limits[name]) for name in sorted(recipe.sample))
    logger.info("training on %.1f MB", len(sample) / 1e6)
    model = _train(sample, recipe)
    directory = arguments.output.parent
    with files.atomic(directory / tokenizers.MODEL) as file:
        file.write(model)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    tokenizers.write_package(directory, processor, recipe.model, [*recipe.sentinels.values()])
    sentinels: FillInTheMiddleIds = {}
    if recipe.sentinels:
        ids = {name: processor.piece_to_id(piece) for name, piece in recipe.sentinels.items()}
        sentinels = {"fill_in_the_middle": ids}
    identity_: TokenizerIdentity = {
        "recipe": recipes.written(recipe, "identity"),
        "sample": files.sha256_bytes(sample),
        "vocab_size": len(processor),
        "unk": UNK,
        "bos": BOS,
        "eos": EOS,
        **sentinels,
        # not the .model, which holds its trainer's arguments as well: the pieces determine a tokenizer
        "pieces": manifest.digest_of({"pieces": tokenizers.pieces_of(processor)}),
        "outputs": {name: manifest.describe(directory / name) for name in tokenizers.PACKAGE},
    }
    record: TokenizerRecord = {
        **clock.record(),
        "model_bytes": len(model),
        "model_sha256": files.sha256_bytes(model),
        "sample_bytes": len(sample),
    }
    manifest.write(arguments.output, arguments.stage_name, identity_, record)


def _sample(listed: ListManifest, recipe: source.SourceRecipe, limit: int) -> bytes:
    """Return whole training documents of a source up to `limit` bytes, one after the other.

    Files are taken in the order of their names' hashes, so that the sample does not depend on the alphabet.
    """
    every_name = [file["name"] for file in listed.identity["files"]]
    if recipe.token_ids_field is not None:
        raise UserError(f"sources.{listed.identity['source']} must hold text to train on, and holds token ids")
    drawn = sorted(every_name, key=lambda name: hashlib.sha256(name.encode()).digest())
    taken, size = [], 0
    filtered = FilterCounts(listed.identity["source"], limit=1)  # a sample does not tell the share in the source
    for document in documents.read(recipe, spans.whole(drawn), every_name):
        filtered.keep(document)
        if isinstance(document, documents.Document) and document.split == TRAIN:
            data = (document.text or "").encode("utf-8", errors="replace")
            taken.append(data[: limit - size].decode("utf-8", errors="ignore").encode() + b"\n")
            size += len(data)
            if size >= limit:
                break
    if not taken:
        filtered.limit = recipe.max_malformed
        filtered.check()
        filtered.check_rest()
    return b"".join(taken)


def _train(sample: bytes, recipe: TokenizerRecipe) -> bytes:
    import sentencepiece

    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_sentences(sample),
            model_writer=model,
            model_type=recipe.model,
            vocab_size=recipe.vocab_size,
            unk_id=UNK,
            bos_id=BOS,
            eos_id=EOS,
            pad_id=-1,
            control_symbols=[*recipe.sentinels.values()],  # None would be the symbol "None"
            byte_fallback=True,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            add_dummy_prefix=False,
            split_digits=True,
            allow_whitespace_only_pieces=True,
            character_coverage=0.9995,
            max_sentence_length=SENTENCE_BYTES,
            num_threads=THREADS,
            minloglevel=2,
        )
    except (RuntimeError, OSError) as error:
        raise _user_error(str(error), recipe, sample) from None
    return model.getvalue()


def _user_error(message: str, recipe: TokenizerRecipe, sample: bytes) -> UserError:
    """Return SentencePiece's error as a sentence for the user."""
    if limit := re.search(r"value <= (\d+)", message):
        return UserError(
            f"train_tokenizer.vocab_size must be at most {limit[1]} for this text ({len(sample):,} bytes), "
            f"got {recipe.vocab_size}"
        )
    if required := re.search(r"required_chars\. \d+ vs (\d+)", message):
        return UserError(
            f"train_tokenizer.vocab_size must be at least {required[1]} to hold the characters of this text, "
            f"got {recipe.vocab_size}"
        )
    if not sample.strip():
        return UserError("no source of train_tokenizer.sample has training text")
    return UserError(
        f"SentencePiece cannot train this tokenizer ({recipe.vocab_size} ids, {len(sample)} bytes): {message}"
    )


def _sentences(sample: bytes) -> Iterator[str]:
    """Yield the sample in sentences under SentencePiece's limit, cut after line ends, so that newlines are learned.

    SentencePiece skips a sentence with U+2585 (its mark for unknown text) or NUL, so they are removed first.
    """
    sample = sample.translate(None, b"\0").replace("\u2585".encode(), b"")
    start = 0
    while start < len(sample):
        end = min(start + SENTENCE_BYTES, len(sample))
        if end < len(sample):
            cut = sample.rfind(b"\n", start, end) + 1
            end = cut if cut > start else _character_start(sample, end)
        yield sample[start:end].decode()
        start = end


def _character_start(data: bytes, at: int) -> int:
    """Return the first byte of the UTF-8 character at `at`."""
    while data[at] & 0xC0 == 0x80:
        at -= 1
    return at


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = stage.parser("stages.train_tokenizer", __doc__, TokenizerRecipe)
    parser.add_argument("--lists", type=Path, nargs="*", default=[], help="the lists of the sources to train on")
    parser.add_argument("--output", type=Path, required=True, help="manifest; the tokenizer is written beside it")
    return stage.execute(parser, run, argv)


if __name__ == "__main__":
    stage.leave(main())
