"""List the items of a suite as text, for `find_overlaps` to look for in a corpus, and `tokenize` to leave out.

    python -m stages.list_items --suite mmlu --recipe '{"tasks": ["mmlu"]}' --output results/suites/mmlu/items.json

An item is a document of a task: its question and right answer, without examples before it. Local tasks have no items:
they are made from the validation split of each corpus, which `tokenize: {duplicates: drop}` keeps out of training.
`limit` of a suite does not count: a score over fewer documents has the same numbers of documents.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stages.lib import files, manifest, stage
from stages.lib import recipe as recipes
from stages.lib.contamination import items
from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.recipe import identity, operation
from stages.lib.scoring import inputs, task_code, task_items


@dataclass(frozen=True, kw_only=True)
class ItemsRecipe:
    """The part of a suite that its items depend on."""

    tasks: list[str] = identity(entries=1)
    """The suite's tasks."""

    include_path: str | None = identity(None)
    """The directory with your own task files."""

    trust_task_code: bool = operation(False)
    """Run the Python code that task files name."""

    def check(self, where: str) -> None:
        """Raise UserError if `include_path` is no directory, or has code."""
        if self.include_path is not None:
            if not Path(self.include_path).is_dir():
                raise UserError(f"{where}.include_path must be a directory, got {self.include_path}")
            task_code.check(Path(self.include_path), task_code.Trust(trusted=self.trust_task_code))


def run(arguments: argparse.Namespace, recipe: ItemsRecipe) -> None:
    """Write the items."""
    payload = files.payload_of(arguments.output)
    files.clear_leftovers(arguments.output)
    found = list(task_items.items_of(recipe.tasks, recipe.include_path, recipe.trust_task_code))
    counts = Counter(item.task for item in found)
    logger.info("suite %s: %s items of %s tasks", arguments.suite, f"{len(found):,}", len(counts))
    with files.atomic_directory(payload) as making:
        items.write(making, found)
        outputs = {f"{payload.name}/{items.FILE}": manifest.describe(making / items.FILE)}
    known = {"recipe": recipes.written(recipe, "identity"), "suite": arguments.suite, "tasks": dict(counts)}
    if recipe.include_path is not None:
        known["include"] = inputs.digest_of_directory(Path(recipe.include_path))
    # no times and no host: unchanged tasks give the same bytes, and nothing downstream runs again
    manifest.write(arguments.output, arguments.stage_name, {**known, "outputs": outputs}, {"code": arguments.code})


def main(argv: Sequence[str] | None = None) -> int:
    """Run the stage; return its exit code."""
    parser = stage.parser("stages.list_items", __doc__, ItemsRecipe)
    parser.add_argument("--suite", required=True, help="name of the suite")
    parser.add_argument("--output", type=Path, required=True, help="manifest; the items are in a directory beside it")
    return stage.execute(parser, run, argv)


if __name__ == "__main__":
    stage.leave(main())
