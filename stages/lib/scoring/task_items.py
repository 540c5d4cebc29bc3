"""The documents of tasks as text: question and answer, without examples before them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from stages.lib.contamination.items import Item
from stages.lib.errors import UserError
from stages.lib.scoring import harness, task_code
from stages.lib.scoring.tasks import local_tasks

if TYPE_CHECKING:
    from lm_eval.api.task import Task


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
