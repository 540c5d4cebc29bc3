"""The base classes of local tasks: tasks of lm-evaluation-harness that are made from validation data.

To add a task, write a module with a subclass of TextTask or PromptCompletionTask, and add an instance of it to
`local_tasks.TASKS`. Tables, figures and the summary's text read its attributes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.lib.manifest_types import Score
from stages.lib.sources.examples import PairSource

Row = dict[str, Any]
"""One line of a task's JSONL file. `document`: what it was cut from; rows of one document are not independent."""

ReaderScores = dict[str, Score]
"""By trivial reader; of as many rows as `n`."""


@dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """The part of a suite that local tasks read."""

    bytes_per_source: int
    """Bytes of validation text per source for bits_per_byte."""

    num_examples: int
    """Examples of a task: questions over all sources, or completions."""

    seed: int

    max_completion_bytes: int
    """A longer completion is not scored."""

    sources: Sequence[str] | None = None
    """The sources whose validation text is scored; None for all."""


@dataclass(frozen=True)
class ValidationText:
    """Pieces of validation text, `{"id", "document", "source", "text"}`, per source.

    `origin` names the corpus in messages.
    """

    pools: Mapping[str, Sequence[Row]]
    origin: Path | str


@dataclass(frozen=True, kw_only=True)
class HarnessFormat:
    """The keys of a task's YAML file that do not depend on its data, see the harness's docs/new_task_guide.md."""

    config: Mapping[str, Any]
    """`output_type`, `doc_to_text`, ..., `metric_list`."""

    trivial: Callable[[Sequence[Row]], ReaderScores]
    """Scores the task's rows by rules without a model: see task_files.py."""

    score_file: Path | None = None
    """A Python file with the function `score(doc, results)`, which replaces the harness's own `process_results`."""


class LocalTask(ABC):
    """A local task: its data, its format for the harness, and the score that tables and figures show."""

    name: str

    metric: str
    """The metric that tables and figures show."""

    further_metrics: tuple[str, ...] = ()
    """Other metrics that are shown beside it where a tuned model is compared with the one before."""

    chance: float | None = None
    """The score of a model that guesses; None for a score that is no accuracy."""

    description: str
    """The score in a few words, for the summary's text."""

    format: HarnessFormat

    def matches(self, harness_task: str) -> bool:
        """Return True for the name of a task of the harness that this local task wrote."""
        return harness_task == self.name

    @property
    def lower_is_better(self) -> bool:
        """Return True if a lower score is better."""
        (entry,) = [entry for entry in self.format.config["metric_list"] if entry["metric"] == self.metric]
        return not entry["higher_is_better"]


class TextTask(LocalTask):
    """A local task that is made from the validation text of a corpus."""

    def pool_bytes(self, options: TaskOptions) -> int:
        """Return how many bytes of text per source the task is made from."""
        return options.bytes_per_source

    @abstractmethod
    def rows(self, text: ValidationText, options: TaskOptions) -> dict[str, list[Row]]:
        """Make the rows of each task of the harness: {its name: rows}. Raises UserError if the text is too small."""


class PromptCompletionTask(LocalTask):
    """A local task that is made from the validation pairs of a source of prompts and completions."""

    @abstractmethod
    def rows(self, source: PairSource, options: TaskOptions) -> dict[str, list[Row]]:
        """Make the rows of each task of the harness: {its name: rows}. Raises UserError if no pair can be used."""
