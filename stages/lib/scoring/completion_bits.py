"""How many bits a model needs for a byte of a validation completion, given its prompt: before and after fine-tuning.

The score is the mean over pairs, so that it has a standard error; the EOS behind a completion is not counted, since a
model that was not tuned does not know that there is one.
"""

import random

from stages.lib.errors import UserError

NAME = "completion_bits"


def rows(source, count, seed, longest):
    """Up to `count` validation pairs: {"id", "source", "context", "completion"}. `source`: a PairSource.

    `longest`: bytes of the longest completion that is taken. Raises UserError when there is no pair.
    """
    taken = [pair for pair in source.validation if len(pair.completion.encode()) <= longest]
    if not taken:
        raise UserError(
            f"source {source.name} must hold out pairs with completions of at most {longest} bytes for {NAME}, and its "
            f"{len(source.validation)} have none; see its key validation"
        )
    random.Random(f"{seed} {source.name} {NAME}").shuffle(taken)
    return [
        {"id": pair.id, "source": source.name, "context": pair.prompt, "completion": pair.completion}
        for pair in taken[:count]
    ]
