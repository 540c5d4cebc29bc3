"""Hold files against their manifests, byte for byte: shards, checkpoints, exports, tokenizers.

    python -m tools.verify results/tokens/main/manifest.json results/runs/base/models/*.json

Every file that a manifest names is read once and its sha256 compared. Training does not do that at each start, which
would take hours for large corpora: it looks at sizes and at the frame of each shard. The exit code is 2 where a file is
gone or differs.
"""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from stages.lib import manifest, stage
from stages.lib.errors import UserError
from stages.lib.space import amount
from stages.lib.tokenizer import tokenizer


def run(arguments):
    """Print what was found, a manifest a line. Raises UserError where a file is not what its manifest says."""
    named = [(made, files_of(made)) for made in map(manifest.read, arguments.manifests)]
    for made, described in named:
        if not described:
            raise UserError(f"{made.path} must be a manifest that names files, and names none")
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
        raise UserError(f"{wrong} files are not what their manifests say")


def files_of(made):
    """{relative path: (bytes, sha256)} of the files that a manifest names, wherever in its identity they stand.

    The model of a trained tokenizer stands in the record, since it holds its trainer's arguments as well.
    """
    found = {name: (file["bytes"], file["sha256"]) for name, file in made.identity.get("outputs", {}).items()}
    if "model_sha256" in made.record:
        found[tokenizer.MODEL] = made.record["model_bytes"], made.record["model_sha256"]

    def walk(value):
        if isinstance(value, dict):
            if {"path", "bytes", "sha256"} <= value.keys():
                found[value["path"]] = value["bytes"], value["sha256"]
            value = list(value.values())
        if isinstance(value, list):
            for inner in value:
                walk(inner)

    walk(made.identity)
    return found


def fault_of(made, file):
    """What is wrong with a file, in a sentence; None for nothing."""
    name, (size, sha256) = file
    path = Path(os.path.normpath(made.directory / name))
    try:
        manifest.check_content(path, {"bytes": size, "sha256": sha256}, made.path)
    except UserError as error:
        return str(error)
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    return None


def main(argv=None):
    """The command line."""
    parser = stage.parser("tools.verify", __doc__)
    parser.add_argument("manifests", nargs="+", type=Path, metavar="MANIFEST", help="of a corpus, a part, a model ...")
    return stage.execute(parser, run, argv)


if __name__ == "__main__":
    sys.exit(main())
