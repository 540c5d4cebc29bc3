"""Verify files against their manifests: the sha256 of shards, checkpoints, exports and tokenizers.

    python -m tools.verify results/tokens/main/manifest.json results/runs/base/models/*.json

Every file of a manifest is read once and its sha256 compared. Training does not do that at each start, since it takes
hours for large corpora: it checks the sizes and the Arrow magic of the shards. The exit code is 2 if a file is missing
or differs.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from stages.lib import manifest, stage
from stages.lib.errors import UserError
from stages.lib.manifest import Manifest
from stages.lib.space import amount
from stages.lib.tokenizer import tokenizer


def run(arguments: argparse.Namespace) -> None:
    """Print one line per manifest. Raises UserError if a file differs from its manifest."""
    named = [(made, files_of(made)) for made in map(manifest.read, arguments.manifests)]
    for made, described in named:
        if not described:
            raise UserError(f"{made.path} must be a manifest with files, and has none")
    wrong = 0
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for made, described in named:
            faults = [fault for fault in pool.map(fault_of, [made] * len(described), described.items()) if fault]
            for fault in faults:
                print(f"WRONG {fault}")
            wrong += len(faults)
            whole, total = len(described) - len(faults), amount(sum(size for size, _ in described.values()))
            print(f"{made.path}: {whole} of {len(described)} files are whole, {total}", flush=True)
    if wrong:
        raise UserError(f"{wrong} files differ from their manifests")


def files_of(made: Manifest) -> dict[str, tuple[int, str]]:
    """Return {relative path: (bytes, sha256)} of the files of a manifest, anywhere in its identity.

    The model of a trained tokenizer is in the record, since it holds its trainer's arguments as well.
    """
    found = {name: (file["bytes"], file["sha256"]) for name, file in made.identity.get("outputs", {}).items()}
    if "model_sha256" in made.record:
        found[tokenizer.MODEL] = made.record["model_bytes"], made.record["model_sha256"]

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            if {"path", "bytes", "sha256"} <= value.keys():
                found[value["path"]] = value["bytes"], value["sha256"]
            value = list(value.values())
        if isinstance(value, list):
            for inner in value:
                walk(inner)

    walk(made.identity)
    return found


def fault_of(made: Manifest, file: tuple[str, tuple[int, str]]) -> str | None:
    """Return what is wrong with a file, in a sentence; None if nothing is."""
    name, (size, sha256) = file
    path = Path(os.path.normpath(made.directory / name))
    try:
        manifest.check_content(path, {"bytes": size, "sha256": sha256}, made.path)
    except UserError as error:
        return str(error)
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    return None


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = stage.parser("tools.verify", __doc__)
    parser.add_argument(
        "manifests", nargs="+", type=Path, metavar="MANIFEST", help="manifest of a corpus, a part, a model ..."
    )
    return stage.execute(parser, run, argv)


if __name__ == "__main__":
    sys.exit(main())
