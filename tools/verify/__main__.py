"""Verify files against their manifests: the sha256 of shards, checkpoints, exports and tokenizers.

    python -m tools.verify results/tokens/main/manifest.json results/runs/base/models/*.json
    python -m tools.verify --chain results/scores.csv
    python -m tools.verify --chain results/scores.csv --crate

Every file of a manifest is read once and its sha256 compared. Training does not do that at each start, since it takes
hours for large corpora: it checks the sizes and the Arrow magic of the shards.

--chain goes on: from the table of scores (or summary.json, an evaluation, any manifest) back to the raw files, through
every manifest that it was made from. It prints one line per link, and says what the manifests do not prove. Run it
where the workflow ran: relative paths of raw files start there. The exit code is 2 if a file is missing or differs.

--crate describes a chain that holds as a Workflow Run RO-Crate: it writes ro-crate-metadata.json to the results
directory, which becomes the crate, and a copy of the workflow's rules to workflow/ there.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from stages.lib import manifest, stage
from stages.lib.errors import UserError
from stages.lib.space import amount
from tools.verify import crate, payload
from tools.verify.checks import SCORES
from tools.verify.places import Places
from tools.verify.walk import Walk

SUMMARY = "summary.json"


def run(arguments: argparse.Namespace) -> None:
    """Print what is whole. Raises UserError if something differs from its manifest."""
    if arguments.crate and (not arguments.chain or len(arguments.manifests) > 1):
        raise UserError("--crate must be given with --chain and one path, of the chain that the crate describes")
    if arguments.chain:
        verify_chains(arguments.manifests, arguments.crate)
    else:
        verify_files(arguments.manifests)


def verify_files(paths: Sequence[Path]) -> None:
    """Print one line per manifest. Raises UserError if a file differs from its manifest."""
    named = [(result, payload.files_of(result)) for result in map(manifest.read, paths)]
    for result, described in named:
        if not described:
            raise UserError(f"{result.path} names no files: it must be a manifest with files")
    wrong = 0
    for result, described in named:
        faults = payload.faults_of(result, described)
        for fault in faults:
            print(f"WRONG {fault}")
        wrong += len(faults)
        whole, total = len(described) - len(faults), amount(sum(size for size, _ in described.values()))
        print(f"{result.path}: {whole} of {len(described)} files are whole, {total}", flush=True)
    if wrong:
        raise UserError(f"{wrong} files differ from their manifests")


def verify_chains(paths: Sequence[Path], write_crate: bool) -> None:
    """Print the chain of each path. Raises UserError if a link is broken, or a crate cannot be written."""
    for path in paths:
        first = manifest.read(manifest_of(path))
        walk = Walk(Places.of(first))
        if write_crate:
            crate.check_absent(walk.places.root)
        for line in walk.tree(first):
            print(line, flush=True)
        faults = walk.proven.faults
        if len(faults) == 1:
            raise UserError(faults[0])
        if faults:
            raise UserError(f"{len(faults)} links of the chain are broken, the first: {faults[0]}")
        left = len(walk.proven.unproven)
        named = f"; {left} not proven, named above" if left else ""
        print(f"{path}: {walk.proven.sentence()}{named}")
        if write_crate:
            print(f"{crate.write(walk)}: the directory is a Workflow Run RO-Crate of this chain")


def manifest_of(path: Path) -> Path:
    """Return the manifest that describes a file: a table of scores has that of its summary beside it.

    Raises UserError for another file.
    """
    if path.name == SCORES:
        if not path.exists():
            raise UserError(f"{path} does not exist")
        return path.with_name(SUMMARY)
    if path.suffix != ".json":
        raise UserError(f"--chain must be given {SCORES}, {SUMMARY} or another manifest, got {path}")
    return path


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = stage.parser("tools.verify", __doc__)
    parser.add_argument(
        "manifests", nargs="+", type=Path, metavar="MANIFEST", help="manifest of a corpus, a part, a model ..."
    )
    parser.add_argument("--chain", action="store_true", help="also all that it was made from, back to the raw files")
    parser.add_argument("--crate", action="store_true", help="with --chain, write a Workflow Run RO-Crate of the chain")
    return stage.execute(parser, run, argv)


if __name__ == "__main__":
    stage.leave(main())
