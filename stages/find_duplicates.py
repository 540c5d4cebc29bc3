"""Find the documents of a corpus that another document repeats, in its own part or in any other.

    python -m stages.find_duplicates --hashes results/hashes/main/books/00000.json results/hashes/main/web/00000.json \\
        --output results/hashes/main/manifest.json

Of equal documents one stays: a validation document before a training document, so that no validation text is trained
on; then the first, in the order of the sources' names and of their files. The numbers of the dropped documents go into
one file per part beside the manifest, which `stages.tokenize` reads.
"""

import sys
from pathlib import Path

from stages.lib import files, manifest, stage
from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.sources import duplicates


def run(arguments):
    """Write what is to be dropped."""
    clock = manifest.Clock(arguments.code)
    files.clear_leftovers(arguments.output)
    parts = [_hashes(path) for path in arguments.hashes]
    parts.sort(key=_place)
    for first, second in zip(parts, parts[1:], strict=False):
        if _place(first) == _place(second):
            raise UserError(f"--hashes must name each part once: {first.path} and {second.path} are the same part")
    runs = [[part.directory / name for name in part.identity["outputs"]] for part in parts]
    found = duplicates.repeated(runs)
    directory = arguments.output.parent
    described, outputs = [], {}
    for part, numbers in zip(parts, found, strict=True):
        facts = {key: part.identity[key] for key in ("source", "source_recipe", "part", "parts", "inputs", "documents")}
        name = f"{facts['source']}/{facts['part']:05d}.duplicates.npy"
        files.clear_leftovers(directory / name)
        duplicates.save(directory / name, numbers)
        outputs[name] = manifest.describe(directory / name)
        described.append(facts | {"duplicates": len(numbers), "path": name})
    total, dropped = sum(part["documents"] for part in described), sum(map(len, found))
    logger.info("%s of %s documents repeat another", f"{dropped:,}", f"{total:,}")
    manifest.write(arguments.output, {"parts": described, "outputs": outputs}, clock.record())


def _hashes(path):
    """The manifest of a part's hashes. Raises UserError where they are not as it says, or it is another's."""
    made = manifest.read(path)
    if not {"source", "source_recipe", "part", "parts", "documents", "outputs"} <= made.identity.keys():
        raise UserError(f"{path} must be what hash_documents made, and is another manifest")
    for name, described in made.identity["outputs"].items():
        manifest.check_content(made.directory / name, described, made.path)
    return made


def _place(part):
    return part.identity["source"], part.identity["part"]


def main(argv=None):
    """The command line."""
    parser = stage.parser("stages.find_duplicates", __doc__)
    parser.add_argument("--hashes", type=Path, nargs="+", required=True, help="manifests of all parts' hashes")
    parser.add_argument("--output", type=Path, required=True, help="manifest of what is to be dropped")
    return stage.execute(parser, run, argv)


if __name__ == "__main__":
    sys.exit(main())
