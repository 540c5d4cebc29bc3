"""Join the parts of all sources to a corpus, and check every shard's sha256 on the way.

    python -m stages.index --tokenizer results/tokenizers/main/manifest.json \\
        --parts results/tokens/main/code/00000.json results/tokens/main/prose/00000.json \\
        --output results/tokens/main/manifest.json

What was hashed is noted in receipt.json beside the manifest: a shard of the same size and time is not hashed again.
"""

import itertools
import math
import os
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from stages.lib import files, manifest, stage
from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.sources.split import TRAIN, VALIDATION
from stages.lib.tokenizer import tokenizer as tokenizers
from stages.lib.tokens.shards import dtype_of

RECEIPT = "receipt.json"


def run(arguments):
    """Write the corpus manifest."""
    parts = [_part(path) for path in arguments.parts]
    tokenizer = tokenizers.Tokenizer(arguments.tokenizer)
    facts = parts[0].identity["tokenizer"]
    for part in parts:
        if part.identity["tokenizer"]["digest"] != tokenizer.digest:
            raise UserError(f"{part.path} must be made with the tokenizer {arguments.tokenizer}, and is another's")
        if part.identity["tokenizer"] != facts or part.identity["recipe"] != parts[0].identity["recipe"]:
            raise UserError(f"{part.path} must be made like {parts[0].path}, and has another recipe")
    _check_complete(parts)
    directory = arguments.output.parent
    for path in (arguments.output, directory / RECEIPT):
        files.clear_leftovers(path)
    _verify(parts, directory / RECEIPT)
    by_source = {}
    for part in sorted(parts, key=_place):
        name = part.identity["source"]
        joined = by_source.setdefault(name, {TRAIN: _empty(), VALIDATION: _empty(texts=True)})
        for split in (TRAIN, VALIDATION):
            _add(joined[split], part, split, directory)
        if part.identity["source_recipe"].get("token_ids_field") is not None:
            joined["ids"] = "given"  # not the tokenizer's, for all that anybody knows
    for name, joined in by_source.items():
        if joined[TRAIN]["tokens"] == 0:
            raise UserError(
                f"corpus {directory}: source {name} must have training text, and has none{_why(parts, name)}"
            )
        if joined[VALIDATION]["tokens"] == 0:
            raise UserError(
                f"corpus {directory}: source {name} must have validation text, and has none; "
                f"raise sources.{name}.validation"
            )
        logger.info("%s: %s training tokens, %s held out", name, joined[TRAIN]["tokens"], joined[VALIDATION]["tokens"])
    identity = {
        "recipe": {},
        "tokenizer": facts,
        "dtype": dtype_of(tokenizer.vocab_size),
        "sources": by_source,
    }
    dropped = {name: dict(sorted(_dropped(parts, name).items())) for name in by_source}
    record = {"code": arguments.code, "parts": len(parts), "licenses": _licenses(parts), "dropped": dropped}
    manifest.write(arguments.output, identity, record)


def _part(path):
    """The manifest of a part. Raises UserError where it is another's."""
    made = manifest.read(path)
    if not {"source", "part", "tokenizer", "inputs", TRAIN, VALIDATION, "outputs"} <= made.identity.keys():
        raise UserError(f"{path} must be the manifest of a part, as stages.tokenize makes it, and is another's")
    return made


def _check_complete(parts):
    """Raise UserError unless each source has all of its parts once, made from one list."""
    seen = {}
    for part in parts:
        first = seen.setdefault((part.identity["source"], part.identity["part"]), part)
        if first is not part:
            raise UserError(f"--parts must name each part once: {first.path} and {part.path} are the same part")
    for source in {source for source, _ in seen}:
        number_of_parts = parts[0].identity["recipe"].get("parts", 1)
        for number in range(number_of_parts):
            if (source, number) not in seen:
                raise UserError(f"--parts must name all {number_of_parts} parts of {source}: part {number} is missing")
            _check_alike(seen[source, 0], seen[source, number])
        of_source = [seen[source, number] for number in range(number_of_parts)]
        _check_listed_alike(of_source)
        _check_once(of_source)


def _check_alike(first, second):
    if first.identity["source_recipe"] != second.identity["source_recipe"]:
        raise UserError(f"{second.path} must be made of the source as {first.path} is, and its list had another recipe")


def _check_listed_alike(parts):
    """Raise UserError where parts of a source say that they are of two lists: files between them would be lost."""
    saying = [part for part in parts if "list" in part.record]  # one made by an earlier version does not
    for part in saying:
        if part.record["list"] != saying[0].record["list"]:
            raise UserError(
                f"{saying[0].path} and {part.path} must be made of one list, and are of two; run -R tokenize"
            )


def _check_once(parts):
    """Raise UserError where two parts of a source hold the same bytes of a file: their lists named other files."""
    if parts[0].identity["source_recipe"]["kind"] == "python-prose":
        return  # each part looks through all modules
    held = {}
    for part in parts:
        for span in part.identity["inputs"]:
            held.setdefault(span["name"], []).append((span.get("first", 0), span.get("end") or math.inf, part.path))
    for name, spans in held.items():
        for (_, end, first), (begin, _, second) in itertools.pairwise(sorted(spans)):
            if begin < end:
                raise UserError(f"{first} and {second} must be made of one list, and both hold {name}")


def _place(part):
    return part.identity["source"], part.identity["part"]


def _licenses(parts):
    """{source: its license} of those that say one. No training depends on it, so it is no part of the identity."""
    said = {part.identity["source"]: part.identity["source_recipe"].get("license") for part in parts}
    return {name: license_ for name, license_ in sorted(said.items()) if license_ is not None}


def _dropped(parts, source):
    """How many documents of a source were dropped, by reason."""
    reasons = Counter()
    for part in parts:
        if part.identity["source"] == source:
            reasons.update(part.record.get("dropped", {}))
    return reasons


def _why(parts, source):
    """The same, for a message."""
    dropped = ", ".join(f"{count} {reason}" for reason, count in sorted(_dropped(parts, source).items()))
    return f"; dropped: {dropped}" if dropped else ""


def _empty(texts=False):
    return {"documents": 0, "tokens": 0, "text_bytes": 0, "shards": []} | ({"texts": []} if texts else {})


def _add(joined, part, split, directory):
    """Add a part's side of the split to the source's; paths become relative to the corpus."""
    found = part.identity[split]
    for key in ("documents", "tokens", "text_bytes"):
        joined[key] += found[key]
    for key in joined.keys() & {"shards", "texts"}:
        for file in found[key]:
            relative = os.path.relpath(part.directory / file["path"], directory)
            joined[key].append(file | {"path": relative})


def _verify(parts, receipt_path):
    """Hash every payload file whose size and time are not in the receipt. Raises UserError on one that changed."""
    try:
        receipt = files.read_json(receipt_path)
    except UserError:  # none yet, or cut: everything is hashed
        receipt = None
    receipt = receipt if isinstance(receipt, dict) else {}
    wanted = {
        part.directory / name: (part, described)
        for part in parts
        for name, described in part.identity["outputs"].items()
    }
    seen = {}

    def check(item):
        path, (part, described) = item
        manifest.check_size(path, described["bytes"], part.path)
        relative = os.path.relpath(path, receipt_path.parent)
        seen[relative] = [described["bytes"], path.stat().st_mtime_ns, described["sha256"]]
        if receipt.get(relative) != seen[relative]:
            manifest.check_content(path, described, part.path)

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # sha256 runs without the interpreter's lock
        list(pool.map(check, wanted.items()))
    files.write_json(receipt_path, dict(sorted(seen.items())))


def main(argv=None):
    """The command line."""
    parser = stage.parser("stages.index", __doc__)
    parser.add_argument("--tokenizer", type=Path, required=True, help="manifest of the tokenizer")
    parser.add_argument("--parts", type=Path, nargs="+", required=True, help="manifests of all parts of all sources")
    parser.add_argument("--output", type=Path, required=True, help="manifest of the corpus")
    return stage.execute(parser, run, argv)


if __name__ == "__main__":
    sys.exit(main())
