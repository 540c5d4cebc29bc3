"""Hash the documents of one part of a source, for `find_duplicates` to compare with those of all parts.

    python -m stages.hash_documents --list results/sources/web/list.json --part 0 --parts 16 \\
        --output results/hashes/main/web/00000.json

The part is that of `stages.tokenize`: the text is read twice, and hashing takes a fifth to a quarter of the time of
tokenizing.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from stages.lib import files, manifest, stage
from stages.lib.errors import UserError
from stages.lib.sources import documents, duplicates, filters, source
from stages.lib.sources.documents import is_empty
from stages.lib.sources.entries import VALIDATION


def run(arguments: argparse.Namespace) -> None:
    """Write the hashes."""
    clock = manifest.Clock(arguments.code)
    if not 0 <= arguments.part < arguments.parts:
        raise UserError(f"--part must be from 0 to {arguments.parts - 1}, got {arguments.part}")
    listed, name, recipe = source.read_list(arguments.list)
    chosen = source.spans_of_part(recipe, listed.identity["files"], arguments.part, arguments.parts)
    before = source.states_of(recipe, listed, chosen)
    read, code = source.inputs_of_part(recipe, listed, chosen), filters.code_of(recipe.filters)
    every_name = [file["name"] for file in listed.identity["files"]]
    payload = files.payload_of(arguments.output)
    files.clear_leftovers(arguments.output)
    with files.atomic_directory(payload) as making:
        runs, number = duplicates.Runs(making), 0
        for entry in documents.read(recipe, chosen, every_name, before):
            if isinstance(entry, documents.Document):
                if not is_empty(entry):
                    runs.add(duplicates.hash_of(entry), number, entry.split == VALIDATION)
                number += 1
        runs.flush()
        outputs = {f"{payload.name}/{run}": manifest.describe(making / run) for run in runs.names}
    identity = {
        "source": name,
        "source_recipe": listed.identity["recipe"],
        "part": arguments.part,
        "parts": arguments.parts,
        "inputs": read,
        "documents": number,
        "outputs": outputs,
        **code,
    }
    manifest.write(arguments.output, arguments.stage_name, identity, clock.record())


def main(argv: Sequence[str] | None = None) -> int:
    """Run the stage; return its exit code."""
    parser = stage.parser("stages.hash_documents", __doc__)
    parser.add_argument("--list", type=Path, required=True, help="the list of the source")
    parser.add_argument("--part", type=int, required=True, help="number of the part, from 0")
    parser.add_argument("--parts", type=int, required=True, help="number of parts of the source")
    parser.add_argument("--output", type=Path, required=True, help="manifest; the hashes are in a directory beside it")
    return stage.execute(parser, run, argv)


if __name__ == "__main__":
    stage.leave(main())
