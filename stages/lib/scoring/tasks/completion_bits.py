"""Bits per byte of a validation completion given its prompt.

The score is the mean over pairs, so it has a standard error. The EOS after a completion is not counted, since a model
before fine-tuning has not learned to predict it.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from stages.lib.errors import UserError
from stages.lib.scoring.tasks import task_files
from stages.lib.scoring.tasks.task import PromptCompletionTask, Row, TaskOptions

if TYPE_CHECKING:
    from stages.lib.sources.prompt_completion import PairSource


class CompletionBits(PromptCompletionTask):
    """The bits that a model needs per byte of the right completion."""

    name = "completion_bits"
    metric = "bits_per_byte"
    description = "bits per byte of validation completions given their prompts"
    format = task_files.COMPLETION

    def rows(self, source: PairSource, options: TaskOptions) -> dict[str, list[Row]]:
        """Take up to `num_examples` validation pairs. Raises UserError if no completion is short enough."""
        return {self.name: sample(source, self.name, options.max_completion_bytes, options)}


def sample(source: PairSource, task: str, num_bytes: int, options: TaskOptions) -> list[Row]:
    """Draw up to `num_examples` validation pairs whose completions have at most `num_bytes` bytes.

    Raises UserError if no completion is short enough.
    """
    taken = [pair for pair in source.validation if len(pair.completion.encode()) <= num_bytes]
    if not taken:
        raise UserError(
            f"source {source.name} must have completions of at most {num_bytes} bytes for {task} in its validation "
            f"split, which has {len(source.validation)} pairs; see its key validation"
        )
    random.Random(f"{options.seed} {source.name} {task}").shuffle(taken)
    return [
        {
            "id": pair.id,
            "document": pair.document or pair.id,
            "source": source.name,
            "context": pair.prompt,
            "completion": pair.completion,
        }
        for pair in taken[: options.num_examples]
    ]
