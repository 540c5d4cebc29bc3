"""Train a SentencePiece tokenizer on a sample of the training text, or take your own; package it for transformers.

    python -m stages.train_tokenizer --lists results/sources/code/list.json results/sources/prose/list.json \\
        --recipe '{"vocabulary": 4096, "sample": {"code": 1, "prose": 1}}' \\
        --output results/tokenizers/main/manifest.json

Validation documents are no part of the sample. Ids: 0 unknown, 1 BOS, 2 EOS, then 256 bytes, then the learnt pieces.

    python -m stages.train_tokenizer --output results/tokenizers/main/manifest.json \\
        --recipe '{"path": "llama3/tokenizer.json", "bos": "<|begin_of_text|>", "eos": "<|end_of_text|>"}'

takes a tokenizer.json as it is: nothing is trained, and its ids stay.
"""

import hashlib
import io
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from stages.lib import files, manifest, recipe, stage
from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.recipe import identity
from stages.lib.sources import documents, source, spans
from stages.lib.sources.filtered import LeftOut
from stages.lib.sources.split import TRAIN
from stages.lib.tokenizer import custom
from stages.lib.tokenizer import tokenizer as tokenizers

UNK, BOS, EOS = 0, 1, 2
SENTENCE_BYTES = 4192  # SentencePiece's own limit: it drops longer sentences without a word
THREADS = 4  # fixed: unigram's pieces depend on it


@dataclass(frozen=True, kw_only=True)
class TokenizerRecipe:
    """A tokenizer to train, or one that is there already."""

    vocab_size: int | None = identity(None, minimum=260, maximum=1 << 20)
    """Number of ids, the 3 special ones and the 256 bytes included."""

    model: str = identity("bpe", choices=("bpe", "unigram"))
    """How pieces are learnt: byte-pair encoding (bpe), or a unigram language model."""

    sample: dict[str, float] | None = identity(None, above=0)
    """The sources to learn from, and how much of the sample each gives."""

    sample_mb: float = identity(100.0, above=0)
    """Size of the sample in millions of bytes; a source that is smaller than its part gives all that it has."""

    path: str | None = identity(None)
    """In place of all above: a tokenizer.json of your own, relative to the working directory. Its content counts, not
    its place."""

    bos: str | None = identity(None)
    """The text of the token in `path` that begins a document; where it has none, that of `eos`."""

    eos: str | None = identity(None)
    """The text of the token in `path` that ends a document."""

    def check(self, where):
        """Raise UserError unless it says how to train, or which file to take, and not both."""
        taken, trained = ("path", "bos", "eos"), ("vocab_size", "sample")
        given = [name for name in taken if getattr(self, name) is not None]
        if "path" in given:
            defaults = TokenizerRecipe.__dataclass_fields__
            for name in (*trained, "model", "sample_mb"):
                if getattr(self, name) != defaults[name].default:
                    raise UserError(f"{where}.{name} must be left out beside {where}.path: nothing is trained")
            for name in taken:
                if name not in given:
                    raise UserError(f"{where}.{name} is missing: it must be the text of a token of {where}.path")
        elif given:
            raise UserError(
                f"{where}.{given[0]} must be left out without {where}.path: a trained tokenizer has its own"
            )
        else:
            for name, wanted in zip(trained, ("a whole number", "a mapping of sources to shares"), strict=True):
                if getattr(self, name) is None:
                    raise UserError(f"{where}.{name} is missing: it must be {wanted}, or {where}.path be given instead")


def run(arguments, plan):
    """Train or take, package, and write the manifest."""
    clock = manifest.Clock(arguments.code)
    files.make_parent(arguments.output)  # before the work, not after it
    for name in (arguments.output.name, tokenizers.MODEL, *tokenizers.PACKAGE):
        files.clear_leftovers(arguments.output.parent / name)
    (take if plan.path is not None else train)(arguments, plan, clock)


def take(arguments, plan, clock):
    """Package a tokenizer of the user's, and write the manifest."""
    where, directory = arguments.stage_name, arguments.output.parent
    package = custom.package_of(Path(plan.path), plan.bos, plan.eos, where)
    tokenizers.write_files(directory, package, plan.bos, plan.eos, custom.unknown_of(package))
    custom.check_written(directory, where)
    identity_ = {
        "recipe": {"bos": plan.bos, "eos": plan.eos},  # the file's place is none of it: its content is in the outputs
        **custom.facts_of(package, plan.bos, plan.eos),
        "outputs": {name: manifest.describe(directory / name) for name in tokenizers.PACKAGE},
    }
    manifest.write(arguments.output, identity_, clock.record(taken={"path": plan.path, **manifest.describe(plan.path)}))


def train(arguments, plan, clock):
    """Train a tokenizer on the lists' sources, package it, and write the manifest."""
    lists = {name: (listed, of_source) for listed, name, of_source in map(source.read_list, arguments.lists)}
    for name in plan.sample:
        if name not in lists:
            raise UserError(f"train_tokenizer.sample.{name} must be one of the sources in --lists: {', '.join(lists)}")
    sample = b"".join(_sample(*lists[name], _share(plan, name)) for name in sorted(plan.sample))
    logger.info("training on %.1f MB", len(sample) / 1e6)
    model = _train(sample, plan)
    directory = arguments.output.parent
    with files.atomic(directory / tokenizers.MODEL) as file:
        file.write(model)
    processor = _processor(model)
    tokenizers.write_package(directory, processor, plan.model)
    identity_ = {
        "recipe": recipe.written(plan, "identity"),
        "sample": files.sha256_bytes(sample),
        "vocab_size": len(processor),
        "unk": UNK,
        "bos": BOS,
        "eos": EOS,
        # the .model holds its trainer's arguments as well: what makes a tokenizer is its pieces
        "pieces": manifest.digest_of({"pieces": tokenizers.pieces_of(processor)}),
        "outputs": {name: manifest.describe(directory / name) for name in tokenizers.PACKAGE},
    }
    record = clock.record(model_bytes=len(model), model_sha256=files.sha256_bytes(model), sample_bytes=len(sample))
    manifest.write(arguments.output, identity_, record)


def _share(plan, name):
    return int(plan.sample_mb * 1e6 * plan.sample[name] / sum(plan.sample.values()))


def _sample(listed, plan, limit):
    """Whole training documents of a source up to `limit` bytes, one after the other.

    Files are taken in the order of their names' hashes, so that the sample is no matter of the alphabet.
    """
    every = [file["name"] for file in listed.identity["files"]]
    taken, size = [], 0
    if plan.token_ids_field is not None:
        raise UserError(f"sources.{listed.identity['source']} must hold text to learn from, and holds ids")
    drawn = sorted(every, key=lambda name: hashlib.sha256(name.encode()).digest())
    left_out = LeftOut(listed.identity["source"], plan.max_malformed)
    for document in documents.read(plan, spans.whole(drawn), every):
        left_out.look(document)
        if isinstance(document, documents.Document) and document.split == TRAIN:
            data = document.text.encode("utf-8", errors="replace")
            taken.append(data[: limit - size].decode("utf-8", errors="ignore").encode() + b"\n")
            size += len(data)
            if size >= limit:
                break
    left_out.check()
    return b"".join(taken)


def _train(sample, plan):
    import sentencepiece

    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_sentences(sample),
            model_writer=model,
            model_type=plan.model,
            vocab_size=plan.vocab_size,
            unk_id=UNK,
            bos_id=BOS,
            eos_id=EOS,
            pad_id=-1,
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
        raise _mistake(str(error), plan, sample) from None
    return model.getvalue()


def _mistake(message, plan, sample):
    """SentencePiece's complaint as a sentence for the user."""
    if limit := re.search(r"value <= (\d+)", message):
        return UserError(
            f"train_tokenizer.vocabulary must be at most {limit[1]} for this text ({len(sample):,} bytes), "
            f"got {plan.vocab_size}"
        )
    if required := re.search(r"required_chars\. \d+ vs (\d+)", message):
        return UserError(
            f"train_tokenizer.vocabulary must be at least {required[1]} to hold the characters of this text, "
            f"got {plan.vocab_size}"
        )
    if not sample.strip():
        return UserError("train_tokenizer.sample must name sources with training text, and they have none")
    return UserError(
        f"SentencePiece cannot train this tokenizer ({plan.vocab_size} ids, {len(sample)} bytes): {message}"
    )


def _sentences(sample):
    """The sample in pieces under SentencePiece's limit, cut at line ends, newlines inside, so that they are learnt.

    A piece with U+2585 (its mark for the unknown) or NUL would be left out whole, so they are taken out first.
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


def _character_start(data, at):
    """The begin of the UTF-8 character that `at` lies in."""
    while data[at] & 0xC0 == 0x80:
        at -= 1
    return at


def _processor(model):
    import sentencepiece

    return sentencepiece.SentencePieceProcessor(model_proto=model)


def main(argv=None):
    """The command line."""
    parser = stage.parser("stages.train_tokenizer", __doc__, TokenizerRecipe)
    parser.add_argument("--lists", type=Path, nargs="*", default=[], help="the lists of the sources to learn from")
    parser.add_argument("--output", type=Path, required=True, help="manifest; the tokenizer is written beside it")
    return stage.execute(parser, run, argv)


if __name__ == "__main__":
    sys.exit(main())
