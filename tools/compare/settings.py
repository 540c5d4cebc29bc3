"""Notes on settings in which two evaluations of a suite differ, so that their scores are not comparable."""

from __future__ import annotations

from typing import Any

from stages.lib.scoring.tasks import local_tasks
from stages.lib.scoring.tasks.task import TextTask
from tools.compare.models import ComparedModel
from tools.compare.recipes import DEFAULT, flatten

UNKNOWN = "unknown"


def notes(reference: ComparedModel, other: ComparedModel, suite: str) -> list[str]:
    """Return a sentence for each setting of a suite that differs between two models."""
    found = [_settings(model, suite) for model in (reference, other)]
    return [
        f"suite {suite}: {key} is {found[0].get(key, DEFAULT)} for {reference.name} and {found[1].get(key, DEFAULT)} "
        f"for {other.name}"
        for key in sorted(found[0].keys() | found[1].keys())
        if found[0].get(key) != found[1].get(key)
    ]


def _settings(model: ComparedModel, suite: str) -> dict[str, str]:
    """Return the settings of an evaluation as flat text: its recipe without the names of tasks, versions, device."""
    made = model.evaluations[suite]
    recipe: dict[str, Any] = made.identity["recipe"]
    tasks = recipe.get("tasks", [])
    options = tasks if isinstance(tasks, dict) else [task for task in tasks if not isinstance(task, str)]
    settings = flatten(recipe | {"tasks": options})
    if "max_length" not in recipe and model.export is not None:  # the default is the model's
        settings["max_length"] = str(model.export.identity.get("seq_len"))
    settings |= {key: str(made.identity[key]) for key in ("include", "prompt_completion") if key in made.identity}
    if made.identity.get("chat_template") is False:
        settings["apply_chat_template"] = "True, and the model has no chat template"
    harness = made.identity.get("harness", made.record.get("versions", {}).get("lm_eval"))
    settings["version of lm_eval"] = str(harness or UNKNOWN)
    settings["device"] = str(made.record.get("device", UNKNOWN))
    return settings


def version_note(reference: ComparedModel, other: ComparedModel, suite: str, task: str) -> list[str]:
    """Return a sentence if the versions of a task differ."""
    versions = [model.evaluations[suite].identity.get("task_versions", {}).get(task) for model in (reference, other)]
    if versions[0] == versions[1]:
        return []
    found = [UNKNOWN if version is None else str(version) for version in versions]
    return [f"task {task} of suite {suite}: version {found[0]} for {reference.name} and {found[1]} for {other.name}"]


def is_of_other_data(reference: ComparedModel, other: ComparedModel, suite: str, task: str) -> bool:
    """Return True if a local task was made from the validation data of different corpora or sources."""
    local = local_tasks.find(task)
    if local is None:
        return False
    key = "corpus" if isinstance(local, TextTask) else "prompt_completion"
    first, second = (model.evaluations[suite].identity.get(key) for model in (reference, other))
    return first != second
