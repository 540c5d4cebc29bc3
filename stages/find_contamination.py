"""Gather the overlaps of all parts of a corpus with a suite: which items are contaminated, and the rate per task.

    python -m stages.find_contamination --corpus results/tokens/main/manifest.json \\
        --items results/suites/mmlu/items.json --overlaps results/overlaps/main/mmlu/web/00000.json \\
        --output results/contamination/main/mmlu.json

The items with an n-gram in the training text are beside the manifest, in mmlu/found_items.jsonl.gz, each with an
example. `stages.summarize` shows the rates, and the scores of the other items.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from stages.lib import files, manifest, stage
from stages.lib import recipe as recipes
from stages.lib.contamination import items, overlaps, rules
from stages.lib.contamination.rules import ContaminationRecipe
from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.manifest import CorpusManifest, ItemsManifest, OverlapsManifest
from stages.lib.manifest_types import ContaminationIdentity
from stages.lib.sources.entries import TRAIN


def check_parts(
    parts: Sequence[OverlapsManifest], corpus: CorpusManifest, listed: ItemsManifest, recipe: ContaminationRecipe
) -> None:
    """Raise UserError unless the overlaps are of these items, of this recipe, and of all of the corpus' shards."""
    for part in parts:
        if part.identity["items"] != listed.digest:
            raise UserError(f"{part.path} was built from a different item list than {listed.path}; delete it and rerun")
        if part.identity["recipe"] != recipes.written(recipe, "identity"):
            raise UserError(f"{part.path} was built with a different recipe than --recipe; delete it and rerun")
    found = Counter((part.identity["source"], shard) for part in parts for shard in part.identity["shards"])
    expected = Counter(
        (source, shard["sha256"]) for source, of in corpus.identity["sources"].items() for shard in of[TRAIN]["shards"]
    )
    if found != expected:
        odd = sorted({source for source, _ in (found - expected) + (expected - found)})
        raise UserError(
            f"--overlaps do not cover each shard of {corpus.path} once: they differ in the shards of {', '.join(odd)}"
        )


def run(arguments: argparse.Namespace, recipe: ContaminationRecipe) -> None:
    """Write the contaminated items and the rates."""
    clock = manifest.Clock(arguments.code)
    corpus, listed = manifest.read(arguments.corpus, "index"), manifest.read(arguments.items, "list_items")
    parts = [manifest.read(path, "find_overlaps") for path in arguments.overlaps]
    parts.sort(key=lambda part: (part.identity["source"], part.identity["part"]))
    check_parts(parts, corpus, listed, recipe)
    directory = files.payload_of(arguments.output)
    for path in (arguments.output, directory / rules.FILE):
        files.clear_leftovers(path)
    rows = overlaps.merged(map(items.read_rows, parts), recipe)
    items.write_lines(directory / rules.FILE, rows)
    results = overlaps.rates(parts[0].identity["tasks"], rows)
    for task, rate in results.items():
        logger.info("%s: %s of %s items are contaminated", task, f"{rate['contaminated']:,}", f"{rate['n']:,}")
    identity: ContaminationIdentity = {
        "recipe": recipes.written(recipe, "identity"),
        "suite": listed.identity["suite"],
        "corpus": corpus.digest,
        "items": listed.digest,
        "results": results,
        "outputs": {f"{directory.name}/{rules.FILE}": manifest.describe(directory / rules.FILE)},
    }
    manifest.write(arguments.output, arguments.stage_name, identity, clock.record())


def main(argv: Sequence[str] | None = None) -> int:
    """Run the stage; return its exit code."""
    parser = stage.parser("stages.find_contamination", __doc__, ContaminationRecipe)
    parser.add_argument("--corpus", type=Path, required=True, metavar="MANIFEST", help="the corpus")
    parser.add_argument("--items", type=Path, required=True, metavar="MANIFEST", help="the items of the suite")
    parser.add_argument(
        "--overlaps", type=Path, nargs="+", required=True, metavar="MANIFEST", help="the overlaps of all parts"
    )
    parser.add_argument("--output", type=Path, required=True, help="manifest; the items in a directory beside it")
    return stage.execute(parser, run, argv)


if __name__ == "__main__":
    stage.leave(main())
