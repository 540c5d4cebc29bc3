"""Sketch the documents of one part of a source, for `find_candidates` to find near duplicates among all parts.

    python -m stages.sketch --list results/sources/web/list.json --part 0 --parts 16 \\
        --output results/sketches/main/web/00000.json

The part is that of `stages.tokenize`. A sketch is the MinHashes of a document's shingles in bands: see
stages/lib/sources/shingles.py. It takes 16 bytes per document and band.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from stages.lib import files, manifest, stage
from stages.lib import recipe as recipes
from stages.lib.log import logger
from stages.lib.manifest_types import DocumentsIdentity
from stages.lib.sources import documents, shingles
from stages.lib.sources.entries import VALIDATION
from stages.lib.sources.near_duplicates import TRAINING, SketchRecipe, SketchRuns


def run(arguments: argparse.Namespace, recipe: SketchRecipe) -> None:
    """Write the sketches."""
    clock = manifest.Clock(arguments.code)
    part = documents.Part(arguments.list, arguments.part, arguments.parts)
    payload = files.payload_of(arguments.output)
    files.clear_leftovers(arguments.output)
    total = without_text = 0
    with files.atomic_directory(payload) as making:
        runs = SketchRuns(making, recipe)
        for batch in documents.batched(part.documents(), shingles.AT_ONCE):
            numbers = np.arange(total, total + len(batch), dtype=np.uint64)
            numbers[[document.split != VALIDATION for document in batch]] |= TRAINING
            runs.add([document.text or "" for document in batch], numbers)
            total += len(batch)
            without_text += sum(document.text is None for document in batch)
        runs.flush()
        outputs = {f"{payload.name}/{name}": manifest.describe(making / name) for name in runs.names}
    if without_text:
        logger.warning("%s pre-tokenized documents have no text and get no sketch", f"{without_text:,}")
    identity: DocumentsIdentity = {
        **part.identity,
        "recipe": recipes.written(recipe, "identity"),
        "documents": total,
        "outputs": outputs,
    }
    record = {**clock.record(), "without_text": without_text}
    manifest.write(arguments.output, arguments.stage_name, identity, record)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the stage; return its exit code."""
    parser = stage.parser("stages.sketch", __doc__, SketchRecipe)
    documents.Part.add_options(parser)
    parser.add_argument("--output", type=Path, required=True, help="manifest; sketches in a directory beside it")
    return stage.execute(parser, run, argv)


if __name__ == "__main__":
    stage.leave(main())
