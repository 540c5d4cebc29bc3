"""The tasks of validation completions given their prompts: bits per byte, exact match, the right one of four.

The score is the mean over pairs, so it has a standard error. The EOS after a completion is not counted, since a model
before fine-tuning has not learned to predict it.
"""

from __future__ import annotations

import random

from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.scoring.tasks import choices, task_files
from stages.lib.scoring.tasks.choices import Candidate
from stages.lib.scoring.tasks.task import PromptCompletionTask, Row, TaskOptions
from stages.lib.sources.examples import Pair, PairSource


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
    return [_row(pair, source.name) | {"completion": pair.completion} for pair in taken[: options.num_examples]]


def _row(pair: Pair, source: str) -> Row:
    return {"id": pair.id, "document": pair.document or pair.id, "source": source, "context": pair.prompt}


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


BIN = 16  # there are fewer pairs than lines of text: with 48, the widest bins would take a third of 500 pairs


class CompletionChoice(PromptCompletionTask):
    """Questions from the validation pairs of a source: which of four completions belongs to the prompt."""

    name = "completion_choice"
    metric = "acc_mutual_info"
    chance = choices.CHANCE
    description = "which of four completions belongs to a prompt"
    format = task_files.MULTIPLE_CHOICE

    def rows(self, source: PairSource, options: TaskOptions) -> dict[str, list[Row]]:
        """Make up to `num_examples` questions, their answers spread evenly over the four positions.

        Raises UserError if the pairs give no question.
        """
        candidates = [Candidate(pair.completion, pair.prompt, pair) for pair in source.validation]
        candidates = [candidate for candidate in candidates if candidate.num_bytes <= options.max_completion_bytes]
        drawn = choices.draw(candidates, options.num_examples, random.Random(f"{options.seed} {source.name}"), BIN)
        if not drawn:
            raise UserError(
                f"source {source.name} must have {choices.CHOICES} different completions of similar length for "
                f"{self.name} in its validation split, which has {len(source.validation)} pairs; see its key validation"
            )
        if len(drawn) < options.num_examples:
            logger.warning(
                "%s: source %s gives %d examples, not %d", self.name, source.name, len(drawn), options.num_examples
            )
        made = [
            _row(candidate.origin, source.name) | {"right": candidate.text, "wrong": wrong}
            for candidate, wrong in drawn
        ]
        return {self.name: choices.balanced(made, random.Random(f"{options.seed} {self.name}"))}
