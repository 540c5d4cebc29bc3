"""Multiple choice: the line that comes next in validation text, of four."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.scoring.tasks import choices, task_files
from stages.lib.scoring.tasks.choices import Candidate
from stages.lib.scoring.tasks.task import Row, TaskOptions, TextTask, ValidationText
from stages.lib.scoring.tasks.text_pieces import first_bytes

POOL_BYTES = 2 << 20  # text per source that questions are made from: about 40,000 lines
CONTEXT_LINES, CONTEXT_BYTES, SHORTEST_CONTEXT_LINES = 10, 400, 3
SHORTEST_LINE = 16  # characters: `else:` or a lone brace cannot be predicted
BIN = 48


class NextLine(TextTask):
    """Questions from the text of all sources: which of four lines comes next."""

    name = "next_line"
    metric = "acc_mutual_info"
    chance = choices.CHANCE
    description = "which of four lines comes next"
    format = task_files.MULTIPLE_CHOICE

    def pool_bytes(self, options: TaskOptions) -> int:
        """Return the bytes of text per source from which lines are drawn."""
        return max(options.bytes_per_source, POOL_BYTES)

    def rows(self, text: ValidationText, options: TaskOptions) -> dict[str, list[Row]]:
        """Make `num_examples` questions, spread evenly over the sources and over the four positions of the answer.

        Raises UserError if a source's text gives no question.
        """
        made: list[Row] = []
        for number, (source, pool) in enumerate(text.pools.items()):
            share = options.num_examples // len(text.pools) + (number < options.num_examples % len(text.pools))
            pieces = first_bytes(pool, self.pool_bytes(options))
            found = _questions(pieces, share, random.Random(f"{options.seed} {source}"))
            if not found and share:
                raise UserError(f"{text.origin}: the validation text of source {source} is too small for {self.name}")
            if len(found) < share:
                logger.warning("%s: source %s gives %d examples, not %d", self.name, source, len(found), share)
            made += found
        return {self.name: choices.balanced(made, random.Random(f"{options.seed} {self.name}"))}


def _questions(pool: Sequence[Row], count: int, rng: random.Random) -> list[Row]:
    lines = [line for piece in pool for line in _candidates(piece)]
    return [_question(line, wrong) for line, wrong in choices.draw(lines, count, rng, BIN)]


def _candidates(piece: Row) -> Iterator[Candidate]:
    """Yield the lines of a piece that are long enough and come after enough lines that are not blank."""
    num_filled = 0
    for number, text in enumerate(piece["text"].split("\n")):
        if num_filled >= SHORTEST_CONTEXT_LINES and len(text.strip()) >= SHORTEST_LINE:
            yield Candidate(text, piece["id"], (piece, number))
        num_filled += bool(text.strip())


def _question(line: Candidate, wrong: Sequence[str]) -> Row:
    piece, number = line.origin
    return {
        "id": f"{piece['id']}:{number}",
        "source": piece["source"],
        "context": _context(piece["text"].split("\n")[:number]),
        "right": f"{line.text}\n",
        "wrong": [f"{text}\n" for text in wrong],
    }


def _context(lines: Sequence[str]) -> str:
    """Join the last of `lines` that fit the limits, each with its line end."""
    taken: list[str] = []
    size = 0
    for line in reversed(lines[-CONTEXT_LINES:]):
        size += len(line.encode()) + 1
        if taken and size > CONTEXT_BYTES:
            break
        taken.append(line)
    return "".join(f"{line}\n" for line in reversed(taken))
