"""Find the documents of a corpus that repeat another document of any part.

    python -m stages.find_duplicates --hashes results/hashes/main/books/00000.json results/hashes/main/web/00000.json \\
        --output results/hashes/main/manifest.json

One of equal documents is kept: a validation document before a training document, so that no validation text is trained
on; then the first, in the order of the sources' names and of their files. The numbers of the duplicates go into one
file per part beside the manifest. `stages.tokenize` reads it.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from stages.lib import files, manifest, stage
from stages.lib.log import logger
from stages.lib.manifest_types import DuplicatesIdentity, EntryOfPart, Files
from stages.lib.sources import duplicates

REPEATED = ("source", "source_recipe", "part", "parts", "inputs", "documents", "filter_code", "classifier")
"""The keys of a part's hashes that the manifest of all parts repeats."""


def run(arguments: argparse.Namespace) -> None:
    """Write the numbers of the duplicates."""
    clock = manifest.Clock(arguments.code)
    files.clear_leftovers(arguments.output)
    parts = duplicates.parts_in_order(arguments.hashes, "hash_documents", "--hashes")
    runs = [[part.directory / name for name in part.identity["outputs"]] for part in parts]
    found, kept_in = duplicates.repeated(runs, [part.identity["source"] for part in parts])
    directory = arguments.output.parent
    described: list[EntryOfPart] = []
    outputs: Files = {}
    for part, numbers in zip(parts, found, strict=True):
        name = f"{part.identity['source']}/{part.identity['part']:05d}.duplicates.npy"
        outputs[name] = duplicates.saved(directory / name, numbers)
        entry = duplicates.described_part(part, REPEATED)
        described.append({**entry, "duplicates": len(numbers), "path": name})
    total, num_duplicates = sum(part["documents"] for part in described), sum(map(len, found))
    logger.info("%s of %s documents repeat another", f"{num_duplicates:,}", f"{total:,}")
    identity: DuplicatesIdentity = {"parts": described, "outputs": outputs}
    record = {**clock.record(), "kept_in": [dict(sorted(sources.items())) for sources in kept_in]}
    manifest.write(arguments.output, arguments.stage_name, identity, record)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the stage; return its exit code."""
    parser = stage.parser("stages.find_duplicates", __doc__)
    parser.add_argument("--hashes", type=Path, nargs="+", required=True, help="manifests of all parts' hashes")
    parser.add_argument("--output", type=Path, required=True, help="manifest; numbers of duplicates beside it")
    return stage.execute(parser, run, argv)


if __name__ == "__main__":
    stage.leave(main())
