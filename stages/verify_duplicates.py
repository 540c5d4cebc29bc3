"""Compare the candidates of near duplicates of a corpus, and decide which documents are removed.

    python -m stages.verify_duplicates --candidates results/near_duplicates/main/candidates.json \\
        --copies results/near_duplicates/main/web/00000.json --recipe '{"min_overlap": 0.8}' \\
        --output results/near_duplicates/main/manifest.json

A document is removed if an earlier one that stays is its near duplicate; validation documents are earlier than all
others, so that no near copy of a validation text is trained on. Beside the manifest lie one file of numbers per part,
which `stages.tokenize` reads, and the evidence, removed.arrow: a row per removed document with the one that stays for
it, their overlap, the ratio of their lengths, and the words of the longest changed passage.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from stages.lib import files, manifest, stage
from stages.lib import manifest_types as types
from stages.lib import recipe as recipes
from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.manifest import CandidatesManifest, DocumentsManifest
from stages.lib.sources import duplicates
from stages.lib.sources.entries import TRAIN, VALIDATION
from stages.lib.sources.near_duplicates import (
    NUMBER_BITS,
    TRAINING,
    Copies,
    NearDuplicatesRecipe,
    Removed,
    Verification,
    numbers_of,
    owners_of,
)

REMOVED = "removed.arrow"
ROWS_AT_ONCE = 1 << 16


def run(arguments: argparse.Namespace, recipe: NearDuplicatesRecipe) -> None:
    """Write the numbers of the near duplicates, and the evidence."""
    clock = manifest.Clock(arguments.code)
    files.clear_leftovers(arguments.output)
    candidates = manifest.read(arguments.candidates, "find_candidates")
    if candidates.identity["recipe"] != recipes.written(recipe.sketch, "identity"):
        raise UserError(f"--candidates {arguments.candidates} has other sketches than the recipe; rerun with -R sketch")
    parts = candidates.identity["parts"]
    copies = _copies_in_order(arguments.copies, candidates)
    pairs = np.load(candidates.output("candidates.npy"))
    gone, exact = _exact_duplicates(arguments.duplicates, parts)
    verification = Verification(
        recipe, pairs, Copies([copy.output(next(iter(copy.identity["outputs"]))) for copy in copies]), gone
    )
    directory = arguments.output.parent
    files.clear_leftovers(directory / REMOVED)
    removed, kept_in = _write_evidence(directory / REMOVED, verification, parts)
    described: list[types.EntryOfPart] = []
    outputs: types.Files = {REMOVED: manifest.describe(directory / REMOVED)}
    for owner, part in enumerate(parts):
        name = f"{part['source']}/{part['part']:05d}.near_duplicates.npy"
        numbers = np.sort(numbers_of(removed[owners_of(removed) == owner]))
        outputs[name] = duplicates.saved(directory / name, numbers)
        described.append({**part, "duplicates": len(numbers), "path": name})
    total = sum(part["documents"] for part in parts)
    refused = dict(sorted(verification.refused.items()))
    logger.info(
        "%s of %s documents are near duplicates; %s pairs were compared, and not removed by %s",
        f"{len(removed):,}", f"{total:,}", f"{verification.compared:,}",
        ", ".join(f"{reason}: {count:,}" for reason, count in refused.items()) or "any condition: 0",
    )  # fmt: skip
    dropped: types.ExactDuplicates = {"duplicates": exact} if exact else {}
    identity: types.NearDuplicatesIdentity = {
        "recipe": recipes.written(recipe, "identity"),
        "candidates": candidates.digest,
        "copies": [copy.digest for copy in copies],
        **dropped,
        "parts": described,
        "outputs": outputs,
    }
    record = {
        **clock.record(),
        "pairs": pairs.shape[1],
        "compared": verification.compared,
        "refused": refused,
        "kept_in": [dict(sorted(sources.items())) for sources in kept_in],
    }
    manifest.write(arguments.output, arguments.stage_name, identity, record)


def _copies_in_order(paths: Sequence[Path], candidates: CandidatesManifest) -> list[DocumentsManifest]:
    """Return the manifests of the copies of all parts, in the order of the candidates' parts."""
    copies = duplicates.parts_in_order(paths, "copy_candidates", "--copies")
    parts = candidates.identity["parts"]
    for copy in copies:
        entry = duplicates.entry_of_part(candidates, copy.identity, "--candidates", "sketch")
        if copy.identity.get("candidates") != candidates.identity["outputs"][entry["path"]]["sha256"]:
            raise UserError(f"{copy.path} has other candidates than {candidates.path}; rerun with -R copy_candidates")
    if len(copies) != len(parts):
        raise UserError(f"--copies must name the copies of all {len(parts)} parts of {candidates.path}")
    return copies


def _exact_duplicates(path: Path | None, parts: Sequence[types.EntryOfPart]) -> tuple[np.ndarray, str | None]:
    """Return the places of the documents that find_duplicates removes, with either split, and its digest."""
    places = [np.empty(0, np.uint64)]
    if path is None:
        return places[0], None
    found = manifest.read(path, "find_duplicates")
    for owner, part in enumerate(parts):
        entry = duplicates.entry_of_part(found, part, "--duplicates", "hash_documents")
        numbers = np.load(found.output(entry["path"])).astype(np.uint64) | np.uint64(owner) << NUMBER_BITS
        places += [numbers, numbers | TRAINING]
    return np.concatenate(places), found.digest


SCHEMA = pa.schema(
    [
        *((f"{which}_{key}", pa.string()) for which in ("removed", "kept") for key in ("source", "id", "split")),
        *((f"{which}_{key}", pa.int64()) for which in ("removed", "kept") for key in ("part", "number")),
        *((("overlap", pa.float64()), ("length_ratio", pa.float64()), ("changed_words", pa.int64()))),
    ]
)


def _write_evidence(
    path: Path, verification: Verification, parts: Sequence[types.EntryOfPart]
) -> tuple[np.ndarray, list[Counter[str]]]:
    """Write a row per removed document; return the places of the documents, uint64, and per part the number of those
    that stay for its documents, {source: number}.
    """
    places: list[int] = []
    kept_in: list[Counter[str]] = [Counter() for _ in parts]
    rows: list[dict[str, object]] = []

    def described(which: str, place: int) -> dict[str, object]:
        part = parts[int(owners_of(np.uint64(place)))]
        split = TRAIN if place & int(TRAINING) else VALIDATION
        values: dict[str, object] = {"source": part["source"], "id": verification.copies[place].id, "split": split}
        values |= {"part": part["part"], "number": int(numbers_of(np.uint64(place)))}
        return {f"{which}_{key}": value for key, value in values.items()}

    def row_of(found: Removed) -> dict[str, object]:
        measures = {key: getattr(found, key) for key in ("overlap", "length_ratio", "changed_words")}
        return described("removed", found.removed) | described("kept", found.kept) | measures

    with files.atomic(path) as file, pa.ipc.new_file(pa.PythonFile(file, mode="w"), SCHEMA) as writer:
        for found in verification.removed():
            places.append(found.removed)
            owner, kept_owner = owners_of(np.array([found.removed, found.kept], np.uint64)).tolist()
            kept_in[owner][parts[kept_owner]["source"]] += 1
            rows.append(row_of(found))
            if len(rows) == ROWS_AT_ONCE:
                writer.write_table(pa.Table.from_pylist(rows, SCHEMA))
                rows.clear()
        writer.write_table(pa.Table.from_pylist(rows, SCHEMA))
    return np.array(places, np.uint64), kept_in


def main(argv: Sequence[str] | None = None) -> int:
    """Run the stage; return its exit code."""
    parser = stage.parser("stages.verify_duplicates", __doc__, NearDuplicatesRecipe)
    parser.add_argument("--candidates", type=Path, required=True, help="manifest of find_candidates")
    parser.add_argument("--copies", type=Path, nargs="+", required=True, help="manifests of all parts' copies")
    parser.add_argument("--duplicates", type=Path, help="manifest of find_duplicates, if exact duplicates are dropped")
    parser.add_argument("--output", type=Path, required=True, help="manifest; the evidence and numbers beside it")
    return stage.execute(parser, run, argv)


if __name__ == "__main__":
    stage.leave(main())
