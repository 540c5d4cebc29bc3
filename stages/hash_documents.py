"""Hash the documents of one part of a source, so that `find_duplicates` can hold them against those of all others.

    python -m stages.hash_documents --list results/sources/web/list.json --part 0 --parts 16 \\
        --output results/hashes/main/web/00000.json

The part is the one that `stages.tokenize` makes: the text is read twice, and this time costs a fifth to a quarter of
what tokenizing it does.
"""

import sys
from pathlib import Path

from stages.lib import files, manifest, stage
from stages.lib.errors import UserError
from stages.lib.sources import documents, duplicates, inputs, source
from stages.lib.sources.filtered import is_empty
from stages.lib.sources.split import VALIDATION


def run(arguments):
    """Write the hashes."""
    clock = manifest.Clock(arguments.code)
    if not 0 <= arguments.part < arguments.parts:
        raise UserError(f"--part must be from 0 to {arguments.parts - 1} for {arguments.parts} parts")
    listed, name, plan = source.read_list(arguments.list)
    chosen = inputs.spans_of_part(plan, listed.identity["files"], arguments.part, arguments.parts)
    before = inputs.states(plan, listed, chosen)
    read = inputs.of_part(plan, listed, chosen)
    every = [file["name"] for file in listed.identity["files"]]
    payload = arguments.output.with_suffix("")
    files.clear_leftovers(arguments.output)
    with files.atomic_directory(payload) as making:
        runs, number = duplicates.Runs(making), 0
        for entry in documents.read(plan, chosen, every, before):
            if isinstance(entry, documents.Document):
                if not is_empty(entry):
                    digest = duplicates.of_text(entry.text) if entry.ids is None else duplicates.of_ids(entry.ids)
                    runs.add(digest, number, entry.split == VALIDATION)
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
    }
    manifest.write(arguments.output, identity, clock.record())


def main(argv=None):
    """The command line."""
    parser = stage.parser("stages.hash_documents", __doc__)
    parser.add_argument("--list", type=Path, required=True, help="the list of the source")
    parser.add_argument("--part", type=int, required=True, help="number of the part, from 0")
    parser.add_argument("--parts", type=int, required=True, help="into how many parts the source is cut")
    parser.add_argument("--output", type=Path, required=True, help="manifest; the hashes in a directory beside it")
    return stage.execute(parser, run, argv)


if __name__ == "__main__":
    sys.exit(main())
