"""Tokenize one part of a source: documents in, an Arrow shard of token ids for each side of the split out.

    python -m stages.tokenize --list results/sources/code/list.json --tokenizer results/tokenizers/main/manifest.json \\
        --part 0 --recipe '{"parts": 2}' --output results/tokens/main/code/00000.json

The shards stand in results/tokens/main/code/00000/, with the text of the held-out documents in validation.jsonl.
Every document is BOS, its ids, EOS; BOS and EOS are added by id, never as text.
"""

import json
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stages.lib import files, manifest, recipe, source, stage
from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.recipe import identity
from stages.lib.split import TRAIN, VALIDATION

KEPT, TEXTS = "manifest.json", "validation.jsonl"
ENCODE_BYTES = 1 << 20  # text that is encoded at once: bounds memory, and is enough for one call to cost nothing


@dataclass(frozen=True, kw_only=True)
class TokenizeRecipe:
    """How documents become shards."""

    parts: int = identity(1, minimum=1, maximum=99999)
    """Number of parts a source is cut into, each a job of its own. Files stay whole."""

    bos: bool = identity(True)
    """Whether each document begins with BOS."""

    shuffle_seed: int = identity(0, minimum=0)
    """Seed of the order of the documents within a part's training shard."""


def run(arguments, plan):
    """Make the part, or find it made."""
    from stages.lib.tokenizer import Tokenizer

    clock = manifest.Clock(arguments.code)
    if not 0 <= arguments.part < plan.parts:
        raise UserError(f"--part must be from 0 to {plan.parts - 1} for {plan.parts} parts, got {arguments.part}")
    listed = manifest.read(arguments.list)
    name = listed.identity["source"]
    source_recipe = recipe.load(source.SourceRecipe, listed.identity["recipe"], f"sources.{name}")
    tokenizer = Tokenizer(arguments.tokenizer)
    chosen = part_of(listed.identity["files"], arguments.part, plan.parts)
    known = {
        "recipe": recipe.written(plan, "identity"),
        "source": name,
        "source_recipe": listed.identity["recipe"],
        "part": arguments.part,
        "tokenizer": _facts_of(tokenizer, plan),
        "inputs": _hash_inputs(source.root_of(source_recipe), chosen, listed, source_recipe),
    }
    payload = arguments.output.with_suffix("")
    if _is_finished(payload, known):
        logger.info("part %s of %s is made already", arguments.part, name)
        files.write_json(arguments.output, files.read_json(payload / KEPT))
        return
    every = [file["name"] for file in listed.identity["files"]]
    identity_, dropped = _make(payload, known, source.documents(source_recipe, chosen, every), tokenizer, plan)
    content = {"identity": identity_, "record": clock.record(dropped=dict(sorted(dropped.items())))}
    files.write_json(payload / KEPT, content)
    files.write_json(arguments.output, content)


def part_of(listed, part, parts):
    """The files of one part: neighbours in the list, cut where the bytes before are nearest to equal shares."""
    total = sum(file["bytes"] for file in listed)
    chosen, before = [], 0
    for file in listed:
        middle = before + file["bytes"] / 2
        if min(parts - 1, int(middle * parts / max(1, total))) == part:
            chosen.append(file["name"])
        before += file["bytes"]
    return chosen


def _facts_of(tokenizer, plan):
    return {
        "digest": tokenizer.digest,
        "vocabulary": tokenizer.vocabulary,
        "bos": tokenizer.bos,
        "eos": tokenizer.eos,
        "bos_added": plan.bos,
    }


def _hash_inputs(root, chosen, listed, source_recipe):
    """What the part is made of. python-prose looks a docstring up in all modules, so all of them are its input."""
    names = [file["name"] for file in listed.identity["files"]] if source_recipe.kind == "python-prose" else chosen
    sizes = {file["name"]: file["bytes"] for file in listed.identity["files"]}
    hashed = []
    for name in names:
        manifest.check_size(root / name, sizes[name], listed.path)
        hashed.append({"name": name, **manifest.describe(root / name)})
    return hashed


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


def _make(payload, known, documents, tokenizer, plan):
    """Make the payload, whole or not at all; returns the part's identity, and how many documents were dropped why."""
    from stages.lib import shards

    dtype = shards.dtype_of(tokenizer.vocabulary)
    with files.atomic_directory(payload) as making:
        with files.atomic(making / TEXTS, "w") as texts:
            encoded, text_bytes, dropped = _encode_all(documents, tokenizer, plan.bos, dtype, texts)
        shuffle = np.random.Generator(np.random.PCG64([plan.shuffle_seed, known["part"]]))
        encoded[TRAIN] = [encoded[TRAIN][i] for i in shuffle.permutation(len(encoded[TRAIN]))]
        sides = {}
        for split, ids in encoded.items():
            name = f"{split}-00000.arrow"
            shard = {"path": f"{payload.name}/{name}", **shards.write(making / name, ids, dtype)}
            shard["text_bytes"] = text_bytes[split]
            sides[split] = {key: shard[key] for key in ("documents", "tokens", "text_bytes")} | {"shards": [shard]}
        sides[VALIDATION]["texts"] = [{"path": f"{payload.name}/{TEXTS}", **manifest.describe(making / TEXTS)}]
    made = [*sides[TRAIN]["shards"], *sides[VALIDATION]["shards"], *sides[VALIDATION]["texts"]]
    outputs = {file["path"]: {"bytes": file["bytes"], "sha256": file["sha256"]} for file in made}
    return {**known, **sides, "outputs": outputs}, dropped


def _encode_all(documents, tokenizer, bos, dtype, texts):
    """Encode documents, and write the text of the held-out ones to `texts`.

    Returns ids {split: [array a document]}, bytes of text {split: number}, and documents dropped {reason: number}.
    """
    encoded, text_bytes, dropped = {TRAIN: [], VALIDATION: []}, Counter(), Counter()
    for document, ids in _encode(documents, tokenizer, dropped):
        framed = np.empty(bos + len(ids) + 1, dtype=dtype)
        framed[:bos], framed[bos:-1], framed[-1] = tokenizer.bos, ids, tokenizer.eos
        encoded[document.split].append(framed)
        text_bytes[document.split] += len(document.text.encode())
        if document.split == VALIDATION:
            texts.write(json.dumps({"id": document.id, "text": document.text}, ensure_ascii=False) + "\n")
    return encoded, text_bytes, dropped


def _encode(documents, tokenizer, dropped):
    """Yield (document, ids) for each document with text, encoding many at once; the others are counted by reason."""
    batch, size = [], 0
    for document in documents:
        if isinstance(document, source.Dropped):
            dropped[document.reason] += 1
            logger.info("dropped %s: %s", document.id, document.reason)
        elif not document.text.strip():
            dropped["empty"] += 1
        else:
            batch.append(document)
            size += len(document.text)
        if size >= ENCODE_BYTES:
            yield from zip(batch, tokenizer.encode([d.text for d in batch]), strict=True)
            batch, size = [], 0
    yield from zip(batch, tokenizer.encode([d.text for d in batch]) if batch else [], strict=True)


def main(argv=None):
    """The command line."""
    parser = stage.parser("tokenize", __doc__, TokenizeRecipe)
    parser.add_argument("--list", type=Path, required=True, help="the list of the source")
    parser.add_argument("--tokenizer", type=Path, required=True, help="manifest of the tokenizer")
    parser.add_argument("--part", type=int, required=True, help="number of the part, from 0")
    parser.add_argument(
        "--output", type=Path, required=True, help="manifest of the part; shards in a directory beside it"
    )
    return stage.execute(parser, run, argv)


if __name__ == "__main__":
    sys.exit(main())
