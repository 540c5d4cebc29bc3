"""List the files of a source: names and sizes, sorted.

    python -m stages.list --name code --recipe '{"kind": "python-code"}' --output results/sources/code/list.json

New files are found when it runs again (`-R list`). The list also has the digest of the classifier of
`filters.quality`, so that all that reads the source depends on it.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from stages.lib import files, manifest, recipe, stage
from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.manifest_types import ListIdentity, ListRecord
from stages.lib.sources import filters, source


def run(arguments: argparse.Namespace, source_recipe: source.SourceRecipe) -> None:
    """Write the list."""
    if not recipe.NAME.fullmatch(arguments.name):
        raise UserError(f"--name must be {recipe.NAME_IN_WORDS}, got {arguments.name!a:.200}")
    filtering = source_recipe.filters
    if (filtering.quality is None) != (arguments.classifier is None):
        expected = "name the manifest of stages.train_classifier" if filtering.quality else "be left out"
        raise UserError(
            f"--classifier must {expected} if the source has {'' if filtering.quality else 'no '}filters.quality"
        )
    digest = None
    if arguments.classifier is not None:
        digest = manifest.read(arguments.classifier, "train_classifier").digest
        filtering = filters.placed(filtering, arguments.classifier, digest)
    filters.prepare(filtering)
    files.clear_leftovers(arguments.output)
    left_out: Counter[str] = Counter()
    found = source.list_files(arguments.name, source_recipe, left_out)
    identity: ListIdentity = {
        "source": arguments.name,
        "recipe": recipe.written(source_recipe, "identity"),
        "files": [{"name": name, "bytes": status.bytes} for name, status in found.items()],
    }
    # no times and no host: an unchanged source gives the same bytes, and nothing downstream runs again
    record: ListRecord = {"code": arguments.code, "etags": {name: status.etag for name, status in found.items()}}
    if digest is not None:
        identity["classifier"] = digest
        record["classifier_manifest"] = manifest.relative(arguments.classifier, arguments.output.parent)
    total = sum(status.bytes for status in found.values())
    logger.info("source %s: %s files, %s bytes", arguments.name, len(found), total)
    if +left_out:
        logger.warning("source %s: left out of its directories: %s", arguments.name, source.counted(left_out))
    operation = recipe.written(source_recipe, "operation")
    manifest.write(arguments.output, arguments.stage_name, identity, {**record, **operation})


def main(argv: Sequence[str] | None = None) -> int:
    """Run the stage; return its exit code."""
    parser = stage.parser("stages.list", __doc__, source.SourceRecipe)
    parser.add_argument("--name", required=True, help="name of the source")
    parser.add_argument("--operation", default="{}", metavar="JSON|FILE", help="more recipe keys: operation keys")
    parser.add_argument("--classifier", type=Path, help="the manifest of the classifier of filters.quality")
    parser.add_argument("--output", type=Path, required=True, help="manifest with the list")
    return stage.execute(parser, run, argv)


if __name__ == "__main__":
    stage.leave(main())
