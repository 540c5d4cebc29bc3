"""Find the n-grams of a suite's items in the training documents of one part of a corpus.

    python -m stages.find_overlaps --items results/suites/mmlu/items.json --part results/tokens/main/web/00000.json \\
        --tokenizer results/tokenizers/main/manifest.json --output results/overlaps/main/mmlu/web/00000.json

The documents are decoded from the shards, so it is the text of training that is searched, and not another one. What
tokenization changes in a text (a custom tokenizer may lower its case) is changed in the items too. Memory is that of
the items, whatever the size of the part: 0.3 GB, and about 100 bytes per word of the items.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from stages.lib import files, manifest, stage, up_to_date
from stages.lib import recipe as recipes
from stages.lib.contamination import items, overlaps
from stages.lib.contamination.ngram_index import NgramIndex
from stages.lib.contamination.rules import ContaminationRecipe
from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.manifest_types import KnownOverlaps, OverlapsIdentity
from stages.lib.sources.entries import TRAIN
from stages.lib.tokenizer.tokenizer import Tokenizer
from stages.lib.tokens import pretokenized

FILE, KEPT = "overlaps.jsonl.gz", "manifest.json"


def run(arguments: argparse.Namespace, recipe: ContaminationRecipe) -> None:
    """Write the overlaps of the part."""
    clock = manifest.Clock(arguments.code)
    tokenizer = Tokenizer(arguments.tokenizer)
    listed = manifest.read(arguments.items, "list_items")
    part = manifest.read(arguments.part, "tokenize")
    if part.identity["tokenizer"]["digest"] != tokenizer.digest:
        raise UserError(f"{arguments.part} was tokenized with a different tokenizer than {arguments.tokenizer}")
    source, number = part.identity["source"], part.identity["part"]
    known: KnownOverlaps = {
        "recipe": recipes.written(recipe, "identity"),
        "source": source,
        "part": number,
        "items": listed.digest,
        "tokenizer": tokenizer.digest,
        "shards": [shard["sha256"] for shard in part.identity[TRAIN]["shards"]],
    }
    payload = files.payload_of(arguments.output)
    files.clear_leftovers(arguments.output)
    if up_to_date.restore(payload / KEPT, arguments.output, known, clock.record()):
        return
    read = items.read(listed)
    index = NgramIndex(read, recipe.ngram, lambda text: tokenizer.decode(tokenizer.encode([text])[0].tolist()))
    started = time.process_time()
    first = overlaps.search(index, pretokenized.training_documents(part, tokenizer) if index.tables else ())
    seconds = max(1e-9, time.process_time() - started)
    rows = overlaps.rows_of(read, index, first, source=source, part=number)
    with files.atomic_directory(payload) as making:
        items.write_lines(making / FILE, rows)
        outputs = {f"{payload.name}/{FILE}": manifest.describe(making / FILE)}
    num_tokens = part.identity[TRAIN]["tokens"]
    logger.info("%s of %s items have n-grams in %s tokens", f"{len(rows):,}", f"{len(read):,}", f"{num_tokens:,}")
    identity: OverlapsIdentity = {**known, "tasks": overlaps.counts_of(read, index), "outputs": outputs}
    record = {**clock.record(), "tokens": num_tokens, "tokens_per_cpu_second": round(num_tokens / seconds)}
    for path in (payload / KEPT, arguments.output):
        manifest.write(path, arguments.stage_name, identity, record)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the stage; return its exit code."""
    parser = stage.parser("stages.find_overlaps", __doc__, ContaminationRecipe)
    parser.add_argument("--items", type=Path, required=True, metavar="MANIFEST", help="the items of the suite")
    parser.add_argument("--part", type=Path, required=True, metavar="MANIFEST", help="the part of the corpus")
    parser.add_argument("--tokenizer", type=Path, required=True, metavar="MANIFEST", help="the corpus' tokenizer")
    parser.add_argument("--output", type=Path, required=True, help="manifest; the overlaps in a directory beside it")
    return stage.execute(parser, run, argv)


if __name__ == "__main__":
    stage.leave(main())
