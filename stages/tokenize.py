"""Tokenize one part of a source: documents in, Arrow shards of token ids for each split out.

    python -m stages.tokenize --list results/sources/code/list.json --tokenizer results/tokenizers/main/manifest.json \\
        --part 0 --recipe '{"parts": 2}' --output results/tokens/main/code/00000.json

The shards are in results/tokens/main/code/00000/, with the text of the validation documents in validation.jsonl. Each
document is BOS, its ids, EOS; BOS and EOS are added by id, never as text.

A part is a share of the source's bytes. Its memory does not grow with them: it is 0.45 GB for common text. A document
of 100 MB takes it to 0.6 GB, or to 0.9 GB if a character of it is beyond U+FFFF, since Python then stores each in 4
bytes; for longer documents see LINE_BYTES of sources/reading.py.
"""

from __future__ import annotations

import argparse
import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

import numpy as np

from stages.lib import files, manifest, stage
from stages.lib import manifest_types as types
from stages.lib import recipe as recipes
from stages.lib.contamination.items import read_items
from stages.lib.contamination.ngram_index import NgramIndex, without
from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.manifest import ListManifest
from stages.lib.recipe import identity
from stages.lib.sources import documents, duplicates, source
from stages.lib.sources.documents import Entry, FilterCounts
from stages.lib.sources.entries import TRAIN, VALIDATION, Document
from stages.lib.tokenizer import fast
from stages.lib.tokenizer.fast import Encoder
from stages.lib.tokenizer.tokenizer import Tokenizer
from stages.lib.tokens import bos_eos, pretokenized
from stages.lib.tokens.pretokenized import Padding, PretokenizedCheck

if TYPE_CHECKING:
    from stages.lib.tokens.shards import Writer


KEPT, TEXTS = "manifest.json", "validation.jsonl"
ENCODE_BYTES = 1 << 20  # text that is encoded at once: bounds memory, and makes the cost of a call negligible

_Key = Literal["duplicates", "near_duplicates"]
_Stage = Literal["find_duplicates", "verify_duplicates"]
DUPLICATES: tuple[tuple[_Key, types.Count, str, _Stage, str], ...] = (
    ("duplicates", "duplicates_of", "duplicate", "find_duplicates", "hash_documents"),
    ("near_duplicates", "near_duplicates_of", "near duplicate", "verify_duplicates", "sketch"),
)
"""(key, count of those that stay, reason, stage that finds them, the first stage before it)"""


@dataclass(frozen=True, kw_only=True)
class TokenizeRecipe:
    """The shards of a part."""

    parts: int = identity(1, minimum=1, maximum=99999)
    """Number of parts into which a source is cut by bytes, each with a job of its own. Files up to 16 MiB and
    compressed files stay whole; others are cut at line ends or between row groups."""

    bos: bool = identity(True)
    """Begin each document with BOS."""

    duplicates: str = identity("keep", choices=("keep", "drop"))
    """Treatment of documents that are equal, word for word, to another of the corpus in any of its sources. keep: as
    any other. drop: one of them stays, a validation document before others; the text is read once more, before all
    else. Pre-tokenized documents are compared with each other only, id by id, and never with text."""

    decontaminate: list[str] = identity([], unique=True)
    """Suites whose items must not stand in the training text: a training document with a run of
    `decontaminate_ngram` words of an item is dropped. Items are the documents of tasks that are not local."""

    decontaminate_ngram: int = identity(13, minimum=4, maximum=100)
    """Words of an n-gram of `decontaminate`; an item with fewer words, but at least 8, is one n-gram."""

    shuffle_seed: int = identity(0, minimum=0)
    """Seed of the order of the documents within a part's training shards."""


def run(arguments: argparse.Namespace, recipe: TokenizeRecipe) -> None:
    """Make the part, unless it is up to date."""
    clock = manifest.Clock(arguments.code)
    part = documents.Part(arguments.list, arguments.part, recipe.parts)
    listed, name = part.listed, part.name
    tokenizer = Tokenizer(arguments.tokenizer)
    known: types.KnownPart = {
        "source": name,
        "source_recipe": source.comparable(listed.identity["recipe"]),
        "part": arguments.part,
        "inputs": part.identity["inputs"],
        **part.filter_code,
        "recipe": recipes.written(recipe, "identity"),  # with the number of parts
        "tokenizer": _tokenizer_identity(tokenizer, recipe),
    }
    drop, repeated = _duplicates(arguments, recipe, part.identity, known)
    clean = _contaminated(arguments.items, recipe, known, tokenizer)
    files.clear_leftovers(arguments.output)
    payload = files.payload_of(arguments.output)
    if _is_up_to_date(payload, known):
        logger.info("part %s of %s is up to date", arguments.part, name)
        kept = manifest.read(payload / KEPT)  # perhaps of an earlier list with the same files for this part
        manifest.write(arguments.output, arguments.stage_name, kept.identity, {**kept.record, **_of_list(listed)})
        return

    def make(encoder: Encoder) -> dict[str, Any]:
        limit = part.recipe.max_malformed if arguments.max_malformed is None else arguments.max_malformed
        # a part does not tell the share in the source: index does
        dropped = FilterCounts(name, limit if recipe.parts == 1 else 1, tokenizer)
        check = PretokenizedCheck(name, tokenizer)
        padding = Padding(tokenizer)
        found = clean(padding.remove(drop(part.entries())))
        identity_ = _make(payload, known, found, tokenizer, encoder, recipe, dropped, check)
        padding.warn(name)
        ids = check.record() | padding.record()
        counts = {**dropped.record(), **repeated, "max_malformed": limit}
        record = {**clock.record(), **_of_list(listed), **encoder.record, **ids, **counts}
        return manifest.content(arguments.stage_name, identity_, record)

    content = fast.encode_exactly(tokenizer, make)
    files.write_json(payload / KEPT, content)
    files.write_json(arguments.output, content)


def _of_list(listed: ListManifest) -> dict[str, Any]:
    """Return what the record of a part repeats of its source's list. No token depends on it."""
    return {"list": listed.digest, "license": listed.record.get("license")}


def _duplicates(
    arguments: argparse.Namespace, recipe: TokenizeRecipe, part: types.NumberedPart, known: types.KnownPart
) -> tuple[Callable[[Iterable[Entry]], Iterator[Entry]], types.Counts[dict[str, int]]]:
    """Return a function that drops the part's duplicates, and the counts of those that stay for them; adds the digests
    of their lists to `known`.

    Raises UserError if a manifest is missing, not expected, or made of other text.
    """
    if (arguments.duplicates is None) != (recipe.duplicates == "keep"):
        expected = "be left out" if arguments.duplicates else "name the manifest of find_duplicates"
        raise UserError(f"--duplicates must {expected} if tokenize.duplicates is {recipe.duplicates}")
    numbers: dict[str, np.ndarray] = {}
    following: Callable[[Iterable[Entry]], Iterator[Entry]] = iter
    kept_in: types.Counts[dict[str, int]] = {}
    for key, count, reason, made_by, made_from in DUPLICATES:
        path, option = getattr(arguments, key), f"--{key.replace('_', '-')}"
        if path is None:
            continue
        made = manifest.read(path, made_by)
        entry = duplicates.entry_of_part(made, part, option, made_from)
        numbers[reason] = np.load(made.directory / entry["path"])
        if "kept_in" in made.record:  # earlier versions did not count it
            kept_in[count] = made.record["kept_in"][made.identity["parts"].index(entry)]
        known[key] = made.identity["outputs"][entry["path"]]["sha256"]
        following = functools.partial(
            duplicates.without, numbers=numbers, total=entry["documents"], option=f"{option} {path}", rerun=made_from
        )
    return following, kept_in


def _contaminated(
    paths: Sequence[Path], recipe: TokenizeRecipe, known: types.KnownPart, tokenizer: Tokenizer
) -> Callable[[Iterable[Entry]], Iterator[Entry]]:
    """Return a function that drops the contaminated documents; adds the digests of the items to `known`.

    `paths`: the manifests of list_items. Raises UserError unless they are those of the recipe's suites.
    """
    items, digests = read_items(paths, recipe.decontaminate)
    if not recipe.decontaminate:
        return iter
    known["decontaminate"] = digests
    index = NgramIndex(items, recipe.decontaminate_ngram)
    logger.info("documents with one of %s n-grams of %s items are filtered", f"{index.num_ngrams:,}", f"{len(items):,}")

    def text_of(document: Document) -> str:
        return pretokenized.with_text(document, tokenizer).text or ""

    return functools.partial(without, index=index, text_of=text_of)


def _tokenizer_identity(tokenizer: Tokenizer, recipe: TokenizeRecipe) -> types.CorpusTokenizer:
    identity_: types.CorpusTokenizer = {
        "digest": tokenizer.digest,
        "vocab_size": tokenizer.vocab_size,
        "bos": tokenizer.bos,
        "eos": tokenizer.eos,
        "bos_added": recipe.bos,
    }
    if tokenizer.fill_in_the_middle:
        identity_["fill_in_the_middle"] = tokenizer.fill_in_the_middle
    return identity_


def _is_up_to_date(payload: Path, known: types.KnownPart) -> bool:
    if not (payload / KEPT).exists():
        return False
    try:
        kept = manifest.read(payload / KEPT)
    except UserError:  # truncated by a crash of the machine
        return False
    earlier = kept.identity | {"source_recipe": source.comparable(kept.identity.get("source_recipe", {}))}
    if any(earlier.get(key) != value for key, value in known.items()):
        return False
    return all(
        (payload.parent / name).exists() and manifest.describe(payload.parent / name) == described
        for name, described in kept.identity["outputs"].items()
    )


def _make(
    payload: Path,
    known: types.KnownPart,
    found: Iterable[Entry],
    tokenizer: Tokenizer,
    encoder: Encoder,
    recipe: TokenizeRecipe,
    dropped: FilterCounts,
    check: PretokenizedCheck,
) -> types.PartIdentity:
    """Write the payload atomically; return the part's identity."""
    from stages.lib.tokens import shards

    dtype = shards.dtype_of(tokenizer.vocab_size)
    with files.atomic_directory(payload) as making:
        writers = {
            TRAIN: shards.Writer(making, TRAIN, dtype, [recipe.shuffle_seed, known["part"]]),
            VALIDATION: shards.Writer(making, VALIDATION, dtype),
        }
        with files.atomic(making / TEXTS, "w") as texts:
            for batch in documents.batched(filter(None, map(dropped.keep, found)), ENCODE_BYTES):
                _add(batch, check, tokenizer, encoder, recipe.bos, writers, texts)
        dropped.check()
        if recipe.parts == 1:  # else the other parts may have documents: index knows
            dropped.check_rest()
        check.warn()
        train, held_out = (_split_identity(writer.finish(), payload.name) for writer in writers.values())
        texts_file: types.PlacedFile = {"path": f"{payload.name}/{TEXTS}", **manifest.describe(making / TEXTS)}
    made: list[types.PlacedFile] = [*train["shards"], *held_out["shards"], texts_file]
    return {
        **known,
        "train": train,
        "validation": {**held_out, "texts": [texts_file]},
        "outputs": {file["path"]: {"bytes": file["bytes"], "sha256": file["sha256"]} for file in made},
    }


def _split_identity(written: Sequence[types.Shard], directory: str) -> types.Split:
    return {
        "documents": sum(shard["documents"] for shard in written),
        "tokens": sum(shard["tokens"] for shard in written),
        "text_bytes": sum(shard["text_bytes"] for shard in written),
        "shards": [{**shard, "path": f"{directory}/{shard['path']}"} for shard in written],
    }


def _add(
    batch: Sequence[Document],
    check: PretokenizedCheck,
    tokenizer: Tokenizer,
    encoder: Encoder,
    bos: bool,
    writers: Mapping[str, Writer],
    texts: IO[str],
) -> None:
    """Encode documents and add them to the shards of their splits; the text of validation documents to `texts`."""
    batch = [pretokenized.with_text(document, tokenizer) for document in batch]
    for document in batch:
        check.look(document)
    for split, writer in writers.items():
        chosen = [document for document in batch if document.split == split]
        if chosen:
            values, lengths = bos_eos.with_bos_eos(chosen, encoder.encode, tokenizer, bos, writer.dtype)
            writer.add(values, lengths, [documents.num_bytes(document.text or "") for document in chosen])
        if split == VALIDATION:
            for document in chosen:
                texts.write(json.dumps({"id": document.id, "text": document.text}, ensure_ascii=False) + "\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = stage.parser("stages.tokenize", __doc__, TokenizeRecipe)
    parser.add_argument("--list", type=Path, required=True, help="the list of the source")
    parser.add_argument("--tokenizer", type=Path, required=True, help="manifest of the tokenizer")
    parser.add_argument("--part", type=int, required=True, help="number of the part, from 0")
    parser.add_argument(
        "--output", type=Path, required=True, help="manifest of the part; shards in a directory beside it"
    )
    parser.add_argument(
        "--max-malformed", type=float, metavar="SHARE", help="max_malformed of the source, if it is not that of --list"
    )
    parser.add_argument("--duplicates", type=Path, help="manifest of find_duplicates, if duplicates are dropped")
    parser.add_argument("--near-duplicates", type=Path, help="manifest of verify_duplicates, if the corpus has one")
    parser.add_argument(
        "--items", type=Path, nargs="+", default=[], metavar="MANIFEST", help="items of the suites of decontaminate"
    )
    return stage.execute(parser, run, argv)


if __name__ == "__main__":
    stage.leave(main())
