"""Find the candidates of near duplicates among all parts of a corpus: documents with an equal key in a band.

    python -m stages.find_candidates --sketches results/sketches/main/books/00000.json \\
        results/sketches/main/web/00000.json --output results/near_duplicates/main/candidates.json

The pairs of candidates go into candidates.npy, and into one file per part the numbers of its documents that are in a
pair: `stages.copy_candidates` copies these, and `stages.verify_duplicates` compares them.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from stages.lib import files, manifest, stage
from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.manifest_types import EntryOfPart, Files, NearDuplicatesIdentity
from stages.lib.sources import duplicates, near_duplicates
from stages.lib.sources.near_duplicates import SketchRecipe, numbers_of, owners_of

PAIRS = "candidates.npy"


def run(arguments: argparse.Namespace) -> None:
    """Write the pairs, and the numbers of the documents in them."""
    clock = manifest.Clock(arguments.code)
    files.clear_leftovers(arguments.output)
    parts = duplicates.parts_in_order(arguments.sketches, "sketch", "--sketches")
    recipes = [part.identity.get("recipe", {}) for part in parts]
    if any(recipe != recipes[0] for recipe in recipes):
        raise UserError("--sketches must be sketches of one recipe; rerun with -R sketch")
    bands = recipes[0].get("bands", SketchRecipe.bands)
    runs = [[part.directory / name for name in part.identity["outputs"]] for part in parts]
    pairs = near_duplicates.candidates(runs, bands)
    directory = arguments.output.parent
    described: list[EntryOfPart] = []
    outputs: Files = {}
    in_pairs = np.unique(pairs)
    for owner, part in enumerate(parts):
        name = f"{part.identity['source']}/{part.identity['part']:05d}.candidates.npy"
        # TRAINING is the highest bit: each part has two ranges of places, sorted together by number
        outputs[name] = duplicates.saved(directory / name, np.sort(numbers_of(in_pairs[owners_of(in_pairs) == owner])))
        keys = [key for key in part.identity if key not in ("outputs", "recipe")]
        described.append({**duplicates.described_part(part, keys), "path": name})
    outputs[PAIRS] = duplicates.saved(directory / PAIRS, pairs)
    total = sum(part["documents"] for part in described)
    logger.info(
        "%s pairs of candidates among %s of %s documents", f"{pairs.shape[1]:,}", f"{len(in_pairs):,}", f"{total:,}"
    )
    identity: NearDuplicatesIdentity = {"recipe": recipes[0], "parts": described, "outputs": outputs}
    manifest.write(arguments.output, arguments.stage_name, identity, {**clock.record(), "pairs": pairs.shape[1]})


def main(argv: Sequence[str] | None = None) -> int:
    """Run the stage; return its exit code."""
    parser = stage.parser("stages.find_candidates", __doc__)
    parser.add_argument("--sketches", type=Path, nargs="+", required=True, help="manifests of all parts' sketches")
    parser.add_argument("--output", type=Path, required=True, help="manifest; the pairs beside it")
    return stage.execute(parser, run, argv)


if __name__ == "__main__":
    stage.leave(main())
