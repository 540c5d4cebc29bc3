"""Join the parts of all sources to a corpus, and check the sha256 of every shard.

    python -m stages.index --tokenizer results/tokenizers/main/manifest.json \\
        --parts results/tokens/main/code/00000.json results/tokens/main/prose/00000.json \\
        --output results/tokens/main/manifest.json

receipt.json beside the manifest stores what was hashed: a shard of the same size and time is not hashed again.
"""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from stages.lib import files, manifest, stage
from stages.lib import manifest_types as types
from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.manifest import PartManifest
from stages.lib.sources import documents
from stages.lib.sources.entries import TRAIN, VALIDATION
from stages.lib.sources.source import comparable
from stages.lib.tokenizer import tokenizer as tokenizers
from stages.lib.tokens.corpus import BYTES_OF_IDS, TokenStream
from stages.lib.tokens.shards import dtype_of

RECEIPT = "receipt.json"

SCALED_TOKENS = 1 << 24
"""Validation tokens, in whole shards, by which the bytes of ids are held against those of the text."""


def run(arguments: argparse.Namespace) -> None:
    """Write the corpus manifest."""
    parts = [manifest.read(path, "tokenize") for path in arguments.parts]
    tokenizer = tokenizers.Tokenizer(arguments.tokenizer)
    tokenizer_identity = parts[0].identity["tokenizer"]
    for part in parts:
        if part.identity["tokenizer"]["digest"] != tokenizer.digest:
            raise UserError(f"{part.path} was tokenized with a different tokenizer than {arguments.tokenizer}")
        if (part.identity["tokenizer"], part.identity["recipe"]) != (tokenizer_identity, parts[0].identity["recipe"]):
            raise UserError(f"{part.path} and {parts[0].path} were tokenized with different settings")
        if part.identity.get("decontaminate") != parts[0].identity.get("decontaminate"):
            raise UserError(f"{part.path} must leave out the items of {parts[0].path}, and leaves out others")
    _check_complete(parts)
    _check_malformed(parts, json.loads(arguments.max_malformed))
    directory = arguments.output.parent
    for path in (arguments.output, directory / RECEIPT, directory / BYTES_OF_IDS):
        files.clear_leftovers(path)
    _verify(parts, directory / RECEIPT)
    by_source: dict[str, types.CorpusSource] = {}
    for part in sorted(parts, key=_place):
        name = part.identity["source"]
        joined = by_source.setdefault(name, {"train": _empty(), "validation": {**_empty(), "texts": []}})
        for split in types.SPLITS:
            found = part.identity[split]
            for key in types.COUNTED:
                joined[split][key] += found[key]
            joined[split]["shards"] += [{**shard, "path": _moved(shard, part, directory)} for shard in found["shards"]]
        texts = part.identity["validation"]["texts"]
        joined["validation"]["texts"] += [{**text, "path": _moved(text, part, directory)} for text in texts]
        if part.identity["source_recipe"].get("token_ids_field") is not None:
            joined["ids"] = "given"  # pre-tokenized, perhaps by another tokenizer
    for name, joined in by_source.items():
        if joined[TRAIN]["tokens"] == 0:
            raise UserError(f"corpus {directory}: source {name} has no training text{_why(parts, name)}")
        if joined[VALIDATION]["tokens"] == 0:
            raise UserError(
                f"corpus {directory}: source {name} has no validation text; raise sources.{name}.validation"
                f"{_why(parts, name)}"
            )
        logger.info(
            "%s: %s training tokens, %s validation tokens", name, joined[TRAIN]["tokens"], joined[VALIDATION]["tokens"]
        )
    identity: types.CorpusIdentity = {
        "recipe": {},
        "tokenizer": tokenizer_identity,
        "dtype": dtype_of(tokenizer.vocab_size),
        "sources": by_source,
    }
    record: types.CorpusRecord = {
        "code": arguments.code,
        "parts": len(parts),
        "licenses": _licenses(parts),
        **_all_counts(parts, by_source),
        "dropped_examples": {name: _examples(parts, name) for name in by_source},
    }
    with files.atomic(directory / BYTES_OF_IDS) as file:
        np.save(file, sizes := tokenizer.bytes_of_ids())
    record["files"] = manifest.described([directory / BYTES_OF_IDS], directory)
    record["bytes_scale"] = {
        name: _bytes_scale(joined[VALIDATION]["shards"], sizes, identity["dtype"], directory)
        for name, joined in by_source.items()
    }
    manifest.write(arguments.output, arguments.stage_name, identity, record)


def _check_malformed(parts: Sequence[PartManifest], limits: dict[str, float]) -> None:
    """Raise UserError if too many records of a source are malformed. `limits`: max_malformed of some sources."""
    for name in sorted({part.identity["source"] for part in parts}):
        counted = [part for part in parts if part.identity["source"] == name and "records" in part.record]
        num_malformed = sum(part.record["malformed"] for part in counted)
        num_records = sum(part.record["records"] for part in counted)
        limit = limits.get(name, max((part.record["max_malformed"] for part in counted), default=1))
        documents.check_share(name, limit, num_malformed, num_records, _counts(parts, name, "dropped"))


def _bytes_scale(shards: Sequence[types.Shard], sizes: np.ndarray, dtype: str, directory: Path) -> float:
    """Return the bytes of text per byte of its ids, by the first shards: 1 unless the tokenizer normalizes."""
    ends = np.cumsum([shard["tokens"] for shard in shards])
    first = shards[: int(np.searchsorted(ends, SCALED_TOKENS)) + 1]
    stream = TokenStream(directory, first, dtype)
    counts = np.bincount(stream.read(0, len(stream)), minlength=len(sizes))
    stream.close()
    return float(sum(shard["text_bytes"] for shard in first) / max(1, counts @ sizes))


def _check_complete(parts: Sequence[PartManifest]) -> None:
    """Raise UserError unless each source has each of its parts once, made from one list."""
    seen: dict[tuple[str, int], PartManifest] = {}
    for part in parts:
        first = seen.setdefault((part.identity["source"], part.identity["part"]), part)
        if first is not part:
            raise UserError(f"--parts must name each part once: {first.path} and {part.path} are the same part")
    for source in {source for source, _ in seen}:
        num_parts = parts[0].identity["recipe"].get("parts", 1)
        for number in range(num_parts):
            if (source, number) not in seen:
                raise UserError(f"--parts must name all {num_parts} parts of {source}: part {number} is missing")
            _check_same_recipe(seen[source, 0], seen[source, number])
        first = seen[source, 0]
        for part in (seen[source, number] for number in range(num_parts)):
            if part.record["list"] != first.record["list"]:  # some files would be missing
                raise UserError(
                    f"{first.path} and {part.path} were built from different file lists; rerun with -R tokenize"
                )


def _check_same_recipe(first: PartManifest, second: PartManifest) -> None:
    one, other = (comparable(part.identity["source_recipe"]) for part in (first, second))
    if one != other:
        raise UserError(f"{first.path} and {second.path} were made from lists with different source recipes")
    if first.identity.get("filter_code") != second.identity.get("filter_code"):
        raise UserError(
            f"{first.path} and {second.path} were filtered by different code of filters.custom; rerun with -R tokenize"
        )


def _place(part: PartManifest) -> tuple[str, int]:
    return part.identity["source"], part.identity["part"]


def _licenses(parts: Sequence[PartManifest]) -> dict[str, str]:
    """Return {source: license} of sources with one. No training depends on it, so it is not part of the identity."""
    found = {part.identity["source"]: part.record.get("license") for part in parts}
    return {name: license_ for name, license_ in sorted(found.items()) if license_ is not None}


def _all_counts(parts: Sequence[PartManifest], sources: Iterable[str]) -> types.Counts[dict[str, dict[str, int]]]:
    """Return the counts by source, without those of nothing, but for what was dropped."""
    counts: types.Counts[dict[str, dict[str, int]]] = {}
    for key in documents.COUNTS:
        by_source = {name: dict(sorted(_counts(parts, name, key).items())) for name in sources}
        if key == "dropped" or any(by_source.values()):
            counts[key] = by_source
    return counts


def _counts(parts: Sequence[PartManifest], source: str, key: types.Count) -> Counter[str]:
    """Return the sum of one of COUNTS over the records of a source's parts."""
    counts: Counter[str] = Counter()
    for part in parts:
        if part.identity["source"] == source:
            counts.update(part.record.get(key, {}))
    return counts


def _examples(parts: Sequence[PartManifest], source: str) -> types.Examples:
    """Return {reason: the first examples of what a source lost for it}."""
    examples: types.Examples = {}
    for part in sorted(parts, key=_place):
        if part.identity["source"] == source:
            for reason, found in part.record.get("dropped_examples", {}).items():
                examples[reason] = [*examples.get(reason, []), *found][: documents.EXAMPLES]
    return dict(sorted(examples.items()))


def _why(parts: Sequence[PartManifest], source: str) -> str:
    """Format the reasons why a source has fewer documents than records, for a message."""
    dropped = ", ".join(f"{count} {reason}" for reason, count in sorted(_counts(parts, source, "dropped").items()))
    return f"; malformed or filtered: {dropped}" if dropped else ""


def _empty() -> types.Split:
    return {"documents": 0, "tokens": 0, "text_bytes": 0, "shards": []}


def _moved(file: types.PlacedFile, part: PartManifest, directory: Path) -> str:
    """Return the path of a part's file relative to the corpus."""
    return os.path.relpath(part.directory / file["path"], directory)


def _verify(parts: Sequence[PartManifest], receipt_path: Path) -> None:
    """Hash every payload file whose size and time are not in the receipt. Raises UserError if one changed."""
    receipt = files.read_cache(receipt_path)  # missing or truncated: everything is hashed
    payload = {
        part.directory / name: (part, described)
        for part in parts
        for name, described in part.identity["outputs"].items()
    }
    hashed: dict[str, list[Any]] = {}

    def check(item: tuple[Path, tuple[PartManifest, types.FileDescription]]) -> None:
        path, (part, described) = item
        manifest.check_size(path, described["bytes"], part.path)
        relative = os.path.relpath(path, receipt_path.parent)
        hashed[relative] = [described["bytes"], path.stat().st_mtime_ns, described["sha256"]]
        if receipt.get(relative) != hashed[relative]:
            manifest.check_content(path, described, part.path)

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # sha256 releases the GIL
        list(pool.map(check, payload.items()))
    files.write_json(receipt_path, dict(sorted(hashed.items())))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = stage.parser("stages.index", __doc__)
    parser.add_argument("--tokenizer", type=Path, required=True, help="manifest of the tokenizer")
    parser.add_argument("--parts", type=Path, nargs="+", required=True, help="manifests of all parts of all sources")
    parser.add_argument(
        "--max-malformed",
        default="{}",
        metavar="JSON",
        help="max_malformed by source; default: that with which the parts were made",
    )
    parser.add_argument("--output", type=Path, required=True, help="manifest of the corpus")
    return stage.execute(parser, run, argv)


if __name__ == "__main__":
    stage.leave(main())
