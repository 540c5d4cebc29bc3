"""The differences between the scores of two models, task by task."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stages.lib.report import comparison
from stages.lib.scoring import sample_logs
from tools.compare import paired, settings
from tools.compare.models import ComparedModel
from tools.compare.paired import Difference, Joined

SIGNIFICANT = 0.05
"""Corrected p-values below it are significant."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """A score of a model. `value` is None if it is not finite, `stderr` and `n` if they are not known."""

    value: float | None
    stderr: float | None
    n: int | None


@dataclass(frozen=True, kw_only=True)
class TaskDifference:
    """The difference of two models in a task, by the task's main metric."""

    suite: str
    task: str
    metric: str
    reference: Score
    other: Score
    difference: Difference | None = None
    """None if a score is not finite."""

    n: int | None = None
    """The documents of a paired difference; None for an unpaired one."""

    corrected_p: float | None = None

    @property
    def lower_is_better(self) -> bool:
        """Return True for a metric like bits per byte."""
        return self.metric.partition("/")[0] in comparison.LOWER_IS_BETTER

    @property
    def significant(self) -> bool:
        """Return True if the corrected p-value is below SIGNIFICANT."""
        return self.corrected_p is not None and self.corrected_p < SIGNIFICANT

    @property
    def verdict(self) -> str:
        """Return better, worse, not significant or unknown, of the other model."""
        if self.difference is None or self.corrected_p is None:
            return "unknown"
        if not self.significant:
            return "not significant"
        return "better" if (self.difference.value < 0) == self.lower_is_better else "worse"


def compare(reference: ComparedModel, other: ComparedModel) -> tuple[list[TaskDifference], list[str]]:
    """Return the differences of all tasks that both models have, and notes on what is not comparable.

    p-values are not corrected yet. Raises UserError if a log is damaged.
    """
    rows: list[TaskDifference] = []
    notes = _only_one_has("suites", reference, other, [*reference.evaluations], [*other.evaluations])
    if reference.model.identity.get("tokenizer") != other.model.identity.get("tokenizer"):
        notes.append(
            f"{reference.name} and {other.name} have different tokenizers: max_length tokens of context are other text"
        )
    for suite in sorted(reference.evaluations.keys() & other.evaluations.keys()):
        results = [model.evaluations[suite].identity["results"] for model in (reference, other)]
        notes += settings.notes(reference, other, suite)
        notes += _only_one_has(f"suite {suite}: tasks", reference, other, *map(list, results))
        for task in results[0]:
            if task in results[1]:
                notes += settings.version_note(reference, other, suite, task)
                row, found = _compare_task(reference, other, suite, task)
                rows += row
                notes += [f"task {task} of suite {suite}: {note}" for note in found]
    return rows, notes


def _only_one_has(
    what: str, reference: ComparedModel, other: ComparedModel, of_reference: Sequence[str], of_other: Sequence[str]
) -> list[str]:
    notes = []
    for model, own, others in ((reference, of_reference, of_other), (other, of_other, of_reference)):
        if more := sorted(set(own) - set(others)):
            notes.append(f"{what} of {model.name} alone: {', '.join(more)}")
    return notes


def _compare_task(
    reference: ComparedModel, other: ComparedModel, suite: str, task: str
) -> tuple[list[TaskDifference], list[str]]:
    """Return the row of a task, none if it is another task for each model, and notes."""
    evaluations = [model.evaluations[suite] for model in (reference, other)]
    found = [made.identity["results"][task] for made in evaluations]
    shared = [metric for metric in found[0] if metric in found[1]]
    if not shared:
        return [], ["left out, since the models have no metric in common"]
    metric = comparison.main_metric(shared)
    first, second = (_score(metrics[metric]) for metrics in found)
    row = TaskDifference(suite=suite, task=task, metric=metric, reference=first, other=second)
    if first.value is None or second.value is None:
        return [row], ["a score is not finite"]
    notes: list[str] = []
    logs = [sample_logs.read_logs(made, suite, task) for made in evaluations]
    if logs[0] is not None and logs[1] is not None:
        joined = Joined(logs[0], logs[1], metric)
        if reason := joined.reason_to_leave_out():
            return [], [f"left out, since {reason}"]
        reason = joined.reason_not_to_pair([first.value, second.value])
        if reason is None:
            difference = paired.paired(*joined.scores())
            return [dataclasses.replace(row, difference=difference, n=len(joined.documents))], joined.notes()
        notes = [f"not paired, since {reason}"]
    elif settings.is_of_other_data(reference, other, suite, task):
        return [], ["left out, since it was made from other validation data, and the logs to join are missing"]
    difference = paired.unpaired(second.value - first.value, [first.stderr, second.stderr])
    return [dataclasses.replace(row, difference=difference)], notes


def _score(entry: Mapping[str, Any]) -> Score:
    return Score(value=entry["value"], stderr=entry.get("stderr"), n=entry.get("n"))
