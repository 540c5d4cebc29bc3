"""Which of four lines comes next in validation text."""

import random

from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.scoring import choices

NAME = "next_line"
POOL_BYTES = 2 << 20  # text a source from which questions are made: some 40,000 lines
CONTEXT_LINES, CONTEXT_BYTES, SHORTEST_CONTEXT_LINES = 10, 400, 3
SHORTEST_LINE = 16  # characters: `else:` or a lone brace would be a question of luck
BIN = 48


def questions(pools, count, seed, where):
    """`count` questions, as evenly over the sources and over the four positions of the answer as can be.

    `pools`: {source: pieces}. Raises UserError when a source's validation text gives no question.
    """
    made = []
    for number, (source, pool) in enumerate(pools.items()):
        share = count // len(pools) + (number < count % len(pools))
        found = _questions_of(pool, share, random.Random(f"{seed} {source}"))
        if not found and share:
            raise UserError(f"{where}: the validation text of source {source} is too small for {NAME}")
        if len(found) < share:
            logger.warning("%s: source %s gives %d questions, not %d", NAME, source, len(found), share)
        made += found
    return choices.balanced(made, random.Random(f"{seed} {NAME}"))


def _questions_of(pool, count, chance):
    lines = [line for piece in pool for line in _lines_of(piece)]
    return [_question(line, wrong) for line, wrong in choices.draw(lines, count, chance, BIN)]


def _lines_of(piece):
    """The lines of a piece that can be asked for: long enough, and behind enough lines that are not blank."""
    spoken = 0
    for number, text in enumerate(piece["text"].split("\n")):
        if spoken >= SHORTEST_CONTEXT_LINES and len(text.strip()) >= SHORTEST_LINE:
            yield choices.Candidate(text, piece["id"], (piece, number))
        spoken += bool(text.strip())


def _question(line, wrong):
    piece, number = line.origin
    return {
        "id": f"{piece['id']}:{number}",
        "source": piece["source"],
        "context": _context(piece["text"].split("\n")[:number]),
        "right": f"{line.text}\n",
        "wrong": [f"{text}\n" for text in wrong],
    }


def _context(lines):
    """The last of `lines` that fit the limits, each with its line end."""
    taken, size = [], 0
    for line in reversed(lines[-CONTEXT_LINES:]):
        size += len(line.encode()) + 1
        if taken and size > CONTEXT_BYTES:
            break
        taken.append(line)
    return "".join(f"{line}\n" for line in reversed(taken))
