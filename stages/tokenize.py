"""Tokenize one part of a source: documents in, an Arrow shard of token ids for each side of the split out.

    python -m stages.tokenize --list results/sources/code/list.json --tokenizer results/tokenizers/main/manifest.json \\
        --part 0 --recipe '{"parts": 2}' --output results/tokens/main/code/00000.json

The shards stand in results/tokens/main/code/00000/, with the text of the validation documents in validation.jsonl.
Every document is BOS, its ids, EOS; BOS and EOS are added by id, never as text.

A part is a share of the source's bytes. Its memory does not grow with them: it is 0.45 GB for common text. A document
of 100 MB takes it to 0.6 GB, or to 0.9 GB where one character of it is beyond U+FFFF, since Python then holds each in 4
bytes; for what is longer see LINE_BYTES of sources/packed.py.
"""

import functools
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stages.lib import files, manifest, recipe, stage
from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.recipe import identity
from stages.lib.sources import documents, duplicates, inputs, source
from stages.lib.sources.filtered import LeftOut
from stages.lib.sources.split import TRAIN, VALIDATION

KEPT, TEXTS = "manifest.json", "validation.jsonl"
ENCODE_BYTES = 1 << 20  # text that is encoded at once: bounds memory, and is enough for one call to cost nothing


@dataclass(frozen=True, kw_only=True)
class TokenizeRecipe:
    """How documents become shards."""

    parts: int = identity(1, minimum=1, maximum=99999)
    """Number of parts a source is cut into by bytes, each a job of its own. Files up to 16 MiB stay whole, as packed
    ones do; others are cut at line ends or between row groups."""

    bos: bool = identity(True)
    """Whether each document begins with BOS."""

    duplicates: str = identity("keep", choices=("keep", "drop"))
    """What becomes of documents that repeat another of the corpus, in any of its sources, word for word. keep: nothing.
    drop: one of them stays, a validation one before others; the text is read once more, before all else. Documents of
    token ids are held against such alone, id by id, and never against text."""

    shuffle_seed: int = identity(0, minimum=0)
    """Seed of the order of the documents within a part's training shard."""


def run(arguments, plan):
    """Make the part, or find it made."""
    from stages.lib.tokenizer import fast
    from stages.lib.tokenizer.tokenizer import Tokenizer
    from stages.lib.tokens.pretokenized import Agreement

    clock = manifest.Clock(arguments.code)
    if not 0 <= arguments.part < plan.parts:
        raise UserError(f"--part must be from 0 to {plan.parts - 1} for {plan.parts} parts, got {arguments.part}")
    listed, name, source_recipe = source.read_list(arguments.list)
    tokenizer = Tokenizer(arguments.tokenizer)
    chosen = inputs.spans_of_part(source_recipe, listed.identity["files"], arguments.part, plan.parts)
    every = [file["name"] for file in listed.identity["files"]]
    before = inputs.states(source_recipe, listed, chosen)
    known = {
        "recipe": recipe.written(plan, "identity"),
        "source": name,
        "source_recipe": listed.identity["recipe"],
        "part": arguments.part,
        "tokenizer": _facts_of(tokenizer, plan),
        "inputs": inputs.of_part(source_recipe, listed, chosen),
    }
    drop = _duplicates(arguments.duplicates, plan, known)
    files.clear_leftovers(arguments.output)
    payload = arguments.output.with_suffix("")
    if _is_finished(payload, known):
        logger.info("part %s of %s is made already", arguments.part, name)
        kept = manifest.read(payload / KEPT)  # perhaps of an earlier list, which had the same files for this part
        manifest.write(arguments.output, kept.identity, kept.record | {"list": listed.digest})
        return

    def make(encoder):
        dropped, agreement = LeftOut(name, source_recipe.max_malformed, tokenizer), Agreement(name, tokenizer)
        found = drop(documents.read(source_recipe, chosen, every, before))
        identity_ = _make(payload, known, found, tokenizer, encoder, plan, dropped, agreement)
        record = clock.record(list=listed.digest, **encoder.record, **agreement.record(), **dropped.record())
        return manifest.content(identity_, record)

    content = fast.exactly(tokenizer, make)
    files.write_json(payload / KEPT, content)
    files.write_json(arguments.output, content)


def _duplicates(path, plan, known):
    """A function that drops what is to be dropped of the part's documents; notes in `known` which these are.

    `path`: the manifest of find_duplicates. Raises UserError where it is missing, too much, or of other text.
    """
    if (path is None) != (plan.duplicates == "keep"):
        expected = "be left out" if path else "name what find_duplicates made"
        raise UserError(f"--duplicates must {expected} where tokenize.duplicates is {plan.duplicates}")
    if path is None:
        return iter
    made = manifest.read(path)
    if not isinstance(made.identity.get("parts"), list):
        raise UserError(f"--duplicates {path} must be what find_duplicates made, and is another manifest")
    for part in made.identity["parts"]:
        if (part["source"], part["part"], part["parts"]) == (known["source"], known["part"], plan.parts):
            if any(part[key] != known[key] for key in ("inputs", "source_recipe")):
                raise UserError(f"--duplicates {path} must be made of the part's files as they are, and is older")
            described, numbers = made.identity["outputs"][part["path"]], made.directory / part["path"]
            manifest.check_content(numbers, described, made.path)
            known["duplicates"], numbers = described["sha256"], np.load(numbers)
            return functools.partial(duplicates.without, numbers=numbers, total=part["documents"], path=path)
    raise UserError(f"--duplicates {path} must hold part {known['part']} of {known['source']}, and does not")


def _facts_of(tokenizer, plan):
    return {
        "digest": tokenizer.digest,
        "vocab_size": tokenizer.vocab_size,
        "bos": tokenizer.bos,
        "eos": tokenizer.eos,
        "bos_added": plan.bos,
    }


def _is_finished(payload, known):
    if not (payload / KEPT).exists():
        return False
    try:
        kept = manifest.read(payload / KEPT)
    except UserError:  # cut by a crash of the machine
        return False
    if any(kept.identity.get(key) != value for key, value in known.items()):
        return False
    return all(
        (payload.parent / name).exists() and manifest.describe(payload.parent / name) == described
        for name, described in kept.identity["outputs"].items()
    )


def _make(payload, known, found, tokenizer, encoder, plan, dropped, agreement):
    """Make the payload, whole or not at all; returns the part's identity."""
    from stages.lib.tokens import shards

    dtype = shards.dtype_of(tokenizer.vocab_size)
    with files.atomic_directory(payload) as making:
        writers = {
            TRAIN: shards.Writer(making, TRAIN, dtype, [plan.shuffle_seed, known["part"]]),
            VALIDATION: shards.Writer(making, VALIDATION, dtype),
        }
        with files.atomic(making / TEXTS, "w") as texts:
            for batch in documents.batched(filter(None, map(dropped.look, found)), ENCODE_BYTES):
                _add(batch, agreement, tokenizer, encoder, plan.bos, writers, texts)
        dropped.check()
        agreement.warn()
        sides = {split: _side(writer.finish(), payload.name) for split, writer in writers.items()}
        sides[VALIDATION]["texts"] = [{"path": f"{payload.name}/{TEXTS}", **manifest.describe(making / TEXTS)}]
    made = [*sides[TRAIN]["shards"], *sides[VALIDATION]["shards"], *sides[VALIDATION]["texts"]]
    outputs = {file["path"]: {"bytes": file["bytes"], "sha256": file["sha256"]} for file in made}
    return {**known, **sides, "outputs": outputs}


def _side(written, directory):
    """What the manifest says of one side of the split."""
    shards = [shard | {"path": f"{directory}/{shard['path']}"} for shard in written]
    totals = {key: sum(shard[key] for shard in shards) for key in ("documents", "tokens", "text_bytes")}
    return totals | {"shards": shards}


def _add(batch, agreement, tokenizer, encoder, bos, writers, texts):
    """Encode some documents and add them to the sides on which they are; the text of the validation ones to `texts`."""
    from stages.lib.tokens import bos_eos, pretokenized

    batch = [pretokenized.with_text(document, tokenizer) for document in batch]
    for document in batch:
        agreement.look(document)
    for split, writer in writers.items():
        chosen = [document for document in batch if document.split == split]
        if chosen:
            values, lengths = bos_eos.framed(chosen, encoder.encode, tokenizer, bos, writer.dtype)
            writer.add(values, lengths, [len(document.text.encode()) for document in chosen])
        if split == VALIDATION:
            for document in chosen:
                texts.write(json.dumps({"id": document.id, "text": document.text}, ensure_ascii=False) + "\n")


def main(argv=None):
    """The command line."""
    parser = stage.parser("stages.tokenize", __doc__, TokenizeRecipe)
    parser.add_argument("--list", type=Path, required=True, help="the list of the source")
    parser.add_argument("--tokenizer", type=Path, required=True, help="manifest of the tokenizer")
    parser.add_argument("--part", type=int, required=True, help="number of the part, from 0")
    parser.add_argument(
        "--output", type=Path, required=True, help="manifest of the part; shards in a directory beside it"
    )
    parser.add_argument("--duplicates", type=Path, help="manifest of find_duplicates, where they are dropped")
    return stage.execute(parser, run, argv)


if __name__ == "__main__":
    sys.exit(main())
