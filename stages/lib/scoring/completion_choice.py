"""Which of four completions belongs to a prompt: of the validation pairs of a source, before and after fine-tuning.

The wrong completions are those of other validation pairs, of like length and of other prompts.
"""

import random

from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.scoring import choices

NAME = "completion_choice"
BIN = 16  # pairs are fewer than lines of text: with 48, the widest bins would take a third of 500 pairs


def questions(source, count, seed, longest):
    """Up to `count` questions, their answers evenly over the four positions. `source`: a PairSource.

    `longest`: bytes of the longest completion that is asked for. Raises UserError when there is no question.
    """
    candidates = [choices.Candidate(pair.completion, pair.prompt, pair) for pair in source.validation]
    candidates = [candidate for candidate in candidates if candidate.num_bytes <= longest]
    drawn = choices.draw(candidates, count, random.Random(f"{seed} {source.name}"), BIN)
    if not drawn:
        raise UserError(
            f"source {source.name} must hold out pairs with {choices.CHOICES} different completions of like length for "
            f"{NAME}, and its {len(source.validation)} have none; see its key validation"
        )
    if len(drawn) < count:
        logger.warning("%s: source %s gives %d questions, not %d", NAME, source.name, len(drawn), count)
    made = [_question(source.name, candidate, wrong) for candidate, wrong in drawn]
    return choices.balanced(made, random.Random(f"{seed} {NAME}"))


def _question(source, candidate, wrong):
    pair = candidate.origin
    return {"id": pair.id, "source": source, "context": pair.prompt, "right": pair.completion, "wrong": wrong}
