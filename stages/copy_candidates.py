"""Copy the candidates of near duplicates in one part of a source, as `verify_duplicates` compares them.

    python -m stages.copy_candidates --candidates results/near_duplicates/main/candidates.json \\
        --list results/sources/web/list.json --part 0 --parts 16 --output results/near_duplicates/main/web/00000.json

The part's text is read once more, unless it has no candidate. The copies are the documents' shingles, in their order.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from stages.lib import files, manifest, stage
from stages.lib.errors import UserError
from stages.lib.manifest_types import DocumentsIdentity
from stages.lib.sources import documents, duplicates, near_duplicates, shingles
from stages.lib.sources.entries import grouped
from stages.lib.sources.near_duplicates import SketchRecipe

COPIES = "copies.arrow"


def run(arguments: argparse.Namespace) -> None:
    """Write the copies."""
    clock = manifest.Clock(arguments.code)
    part = documents.Part(arguments.list, arguments.part, arguments.parts)
    candidates = manifest.read(arguments.candidates, "find_candidates")
    entry = duplicates.entry_of_part(candidates, part.identity, "--candidates", "sketch")
    numbers = np.load(candidates.directory / entry["path"])
    length = candidates.identity["recipe"].get("shingle_words", SketchRecipe.shingle_words)
    payload = files.payload_of(arguments.output)
    files.clear_leftovers(arguments.output)
    with files.atomic_directory(payload) as making:
        schema = near_duplicates.schema_of_copies()
        with files.atomic(making / COPIES) as file, pa.ipc.new_file(pa.PythonFile(file, mode="w"), schema) as writer:
            chosen = _chosen(part, numbers, entry["documents"], arguments.candidates)
            for batch in grouped(chosen, lambda document: len(document[2]), shingles.AT_ONCE):
                writer.write_batch(near_duplicates.copies_of(batch, length))
        outputs = {f"{payload.name}/{COPIES}": manifest.describe(making / COPIES)}
    identity: DocumentsIdentity = {
        **part.identity,
        "candidates": candidates.identity["outputs"][entry["path"]]["sha256"],
        "shingle_words": length,
        "documents": len(numbers),
        "outputs": outputs,
    }
    manifest.write(arguments.output, arguments.stage_name, identity, clock.record())


def _chosen(part: documents.Part, numbers: np.ndarray, total: int, path: Path) -> Iterator[tuple[int, str, str]]:
    """Yield (number, id, text) of the documents with the sorted `numbers`.

    Raises UserError naming the manifest of the candidates, `path`, unless the part has `total` documents.
    """
    if not len(numbers):
        return
    waiting = iter(numbers.tolist())
    following, number = next(waiting), -1
    for number, document in enumerate(part.documents()):
        if number == following:
            yield number, document.id, document.text or ""
            following = next(waiting, -1)
    if number + 1 != total:
        raise UserError(
            f"--candidates {path} was built from {total} documents, but {number + 1} are read; rerun with -R sketch"
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the stage; return its exit code."""
    parser = stage.parser("stages.copy_candidates", __doc__)
    parser.add_argument("--candidates", type=Path, required=True, help="manifest of find_candidates")
    documents.Part.add_options(parser)
    parser.add_argument("--output", type=Path, required=True, help="manifest; the copies are in a directory beside it")
    return stage.execute(parser, run, argv)


if __name__ == "__main__":
    stage.leave(main())
