"""Exact match: whether the text that a model generates after a validation prompt is the right completion.

The most probable token is taken at each position, up to EOS. `stopped` is the share of prompts after which EOS came
within the limit: a model that does not end its answers fails both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stages.lib.scoring.tasks import task_files
from stages.lib.scoring.tasks.completion_bits import sample
from stages.lib.scoring.tasks.task import PromptCompletionTask, Row, TaskOptions

if TYPE_CHECKING:
    from stages.lib.sources.prompt_completion import PairSource


class CompletionMatch(PromptCompletionTask):
    """The share of prompts after which a model generates the right completion."""

    name = "completion_match"
    metric = "exact_match"
    further_metrics = ("stopped",)
    description = "exact match of the completions that a model generates"
    format = task_files.GENERATION

    def rows(self, source: PairSource, options: TaskOptions) -> dict[str, list[Row]]:
        """Take up to `num_examples` validation pairs. Raises UserError if no completion is short enough."""
        # a token has at least one byte, and EOS follows
        longest = min(task_files.MAX_NEW_TOKENS - 1, options.max_completion_bytes)
        return {self.name: sample(source, self.name, longest, options)}
