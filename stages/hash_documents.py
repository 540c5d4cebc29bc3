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
from stages.lib.manifest_types import DocumentsIdentity
from stages.lib.sources import documents, duplicates
from stages.lib.sources.entries import VALIDATION


def run(arguments: argparse.Namespace) -> None:
    """Write the hashes."""
    clock = manifest.Clock(arguments.code)
    part = documents.Part(arguments.list, arguments.part, arguments.parts)
    payload = files.payload_of(arguments.output)
    files.clear_leftovers(arguments.output)
    with files.atomic_directory(payload) as making:
        runs, number = duplicates.Runs(making), 0
        for number, document in enumerate(part.documents(), 1):
            if not documents.is_empty(document):
                runs.add(duplicates.hash_of(document), number - 1, document.split == VALIDATION)
        runs.flush()
        outputs = {f"{payload.name}/{run}": manifest.describe(making / run) for run in runs.names}
    identity: DocumentsIdentity = {**part.identity, "documents": number, "outputs": outputs}
    manifest.write(arguments.output, arguments.stage_name, identity, clock.record())


def main(argv: Sequence[str] | None = None) -> int:
    """Run the stage; return its exit code."""
    parser = stage.parser("stages.hash_documents", __doc__)
    documents.Part.add_options(parser)
    parser.add_argument("--output", type=Path, required=True, help="manifest; the hashes are in a directory beside it")
    return stage.execute(parser, run, argv)


if __name__ == "__main__":
    stage.leave(main())
