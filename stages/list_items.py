"""List the items of a suite as text, for `find_overlaps` to look for in a corpus, and `tokenize` to leave out.

    python -m stages.list_items --suite mmlu --recipe '{"tasks": ["mmlu"]}' --output results/suites/mmlu/items.json

An item is a document of a task: its question and right answer, without examples before it. Local tasks have no items:
they are made from the validation split of each corpus, which `tokenize: {duplicates: drop}` keeps out of training.
`limit` of a suite does not count: a score over fewer documents has the same numbers of documents.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stages.lib import files, manifest, stage
from stages.lib import recipe as recipes
from stages.lib.contamination import items
from stages.lib.contamination.items import Item
from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.manifest_types import Include, ItemsIdentity
from stages.lib.recipe import identity, operation
from stages.lib.scoring import harness, inputs, task_code
from stages.lib.scoring.tasks import local_tasks

if TYPE_CHECKING:
    from lm_eval.api.task import Task


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
        """Raise UserError if `include_path` is not a directory, or has code."""
        if self.include_path is not None:
            if not Path(self.include_path).is_dir():
                raise UserError(f"{where}.include_path must be a directory, got {self.include_path}")
            task_code.check(Path(self.include_path), task_code.Trust(trusted=self.trust_task_code))


def items_of(tasks: Sequence[str], include_path: str | None, trusted: bool) -> Iterator[Item]:
    """Yield the items of all tasks but local ones, those of a group task by task; each task once.

    Raises UserError if a task does not exist, or cannot be loaded.
    """
    others = [task for task in tasks if task not in local_tasks.NAMES]
    if not others:
        return
    harness.settle_environment(offline=False)
    if include_path and not trusted:
        task_code.guard_templates()
    known = ", ".join([*local_tasks.NAMES, *([f"of include_path {include_path}"] if include_path else [])])
    trust, paths = task_code.Trust(trusted=trusted), [include_path] if include_path else []
    manager = harness.task_manager(paths, others, known, "list_items.tasks", trust=trust)
    for name, task in manager.load(others)["tasks"].items():
        for number, document in enumerate(task.eval_docs):
            yield Item(name, number, _text_of(task, document, name))


def _text_of(task: Task, document: Any, name: str) -> str:
    """Return a document's question and right answer, as the harness shows them, or its text if it has no question."""
    try:
        question, answer = task.doc_to_text(document), task.doc_to_target(document)
        if getattr(task.config, "doc_to_choice", None) is not None:
            choices = task.doc_to_choice(document)
            # a number is a choice's: that of the answer or, as in WinoGrande, of the question
            question, answer = _choice(question, choices), _choice(answer, choices)
    except Exception as error:  # of a template, of the task's own code, or of the data
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise UserError(f"list_items.tasks: {name} has a document that cannot be made into text: {reason}") from error
    return f"{_joined(question)} {_joined(answer)}"


def _choice(part: Any, choices: Sequence[Any]) -> Any:
    if isinstance(part, list):
        return [_choice(each, choices) for each in part]
    return choices[part] if isinstance(part, int) else part


def _joined(part: Any) -> str:
    return " ".join(map(str, part)) if isinstance(part, list) else str(part)


def run(arguments: argparse.Namespace, recipe: ItemsRecipe) -> None:
    """Write the items."""
    payload = files.payload_of(arguments.output)
    files.clear_leftovers(arguments.output)
    listed = list(items_of(recipe.tasks, recipe.include_path, recipe.trust_task_code))
    counts = Counter(item.task for item in listed)
    logger.info("suite %s: %s items of %s tasks", arguments.suite, f"{len(listed):,}", len(counts))
    with files.atomic_directory(payload) as making:
        items.write(making, listed)
        outputs = {f"{payload.name}/{items.FILE}": manifest.describe(making / items.FILE)}
    include: Include = {}
    if recipe.include_path is not None:
        include["include"] = inputs.digest_of_directory(Path(recipe.include_path))
    known: ItemsIdentity = {
        "recipe": recipes.written(recipe, "identity"),
        "suite": arguments.suite,
        "tasks": dict(counts),
        **include,
        "outputs": outputs,
    }
    # no times and no host: unchanged tasks give the same bytes, and nothing downstream runs again
    manifest.write(arguments.output, arguments.stage_name, known, {"code": arguments.code})


def main(argv: Sequence[str] | None = None) -> int:
    """Run the stage; return its exit code."""
    parser = stage.parser("stages.list_items", __doc__, ItemsRecipe)
    parser.add_argument("--suite", required=True, help="name of the suite")
    parser.add_argument("--output", type=Path, required=True, help="manifest; the items are in a directory beside it")
    return stage.execute(parser, run, argv)


if __name__ == "__main__":
    stage.leave(main())
