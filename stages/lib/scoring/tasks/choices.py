"""Questions of four choices that a model without the context answers right by chance, and the task next_line.

All candidates are sorted by length and cut into bins; a question's four choices come from one bin, each candidate with
the same probability. So the right choice is no more common and no longer than the others.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.scoring.tasks import task_files
from stages.lib.scoring.tasks.task import Row, TaskOptions, TextTask, ValidationText
from stages.lib.scoring.tasks.text_pieces import first_bytes

CHOICES = 4
CHANCE = 1 / CHOICES
WIDEST_BIN = 1.5  # longest length of a bin / shortest; a bin that is wider gives no question


@dataclass(frozen=True)
class Candidate:
    """A text that may be the right choice, or a wrong one of a candidate of another group. `origin` is the caller's."""

    text: str
    group: str
    origin: Any

    @property
    def num_bytes(self) -> int:
        """Return the length, by which candidates are binned."""
        return len(self.text.encode())


def draw(
    candidates: Iterable[Candidate], count: int, rng: random.Random, bin_size: int
) -> list[tuple[Candidate, list[str]]]:
    """Draw up to `count` different candidates, each with three wrong choices: [(Candidate, [text])].

    `bin_size`: the number of candidates in a bin.
    """
    ordered = list(candidates)
    rng.shuffle(ordered)  # else candidates of equal length would be in the order of the text
    ordered.sort(key=lambda candidate: candidate.num_bytes)
    order = list(range(len(ordered)))
    rng.shuffle(order)
    drawn: list[tuple[Candidate, list[str]]] = []
    for at in order:
        if len(drawn) == count:
            break
        first = at - at % bin_size
        wrong = _wrong_for(ordered[at], ordered[first : first + bin_size], rng)
        if wrong is not None:
            drawn.append((ordered[at], wrong))
    return drawn


def _wrong_for(right: Candidate, nearby: Sequence[Candidate], rng: random.Random) -> list[str] | None:
    """Draw three texts from a bin, of other groups, different from `right` and each other; None if it has too few."""
    if nearby[-1].num_bytes > WIDEST_BIN * nearby[0].num_bytes:
        return None
    taken = {right.text.strip(): right.text}
    for other in rng.sample(nearby, len(nearby)):
        if other.group != right.group:
            taken.setdefault(other.text.strip(), other.text)
        if len(taken) == CHOICES:
            return list(taken.values())[1:]
    return None


def balanced(questions: list[Row], rng: random.Random) -> list[Row]:
    """Shuffle the questions and spread their answers evenly over the four positions.

    A question's keys `right` and `wrong` become `choices` and `answer`.
    """
    rng.shuffle(questions)
    positions = [number % CHOICES for number in range(len(questions))]
    rng.shuffle(positions)
    rows = []
    for question, position in zip(questions, positions, strict=True):
        choices = list(question["wrong"])
        choices.insert(position, question["right"])
        kept = {key: value for key, value in question.items() if key not in ("right", "wrong")}
        rows.append(kept | {"choices": choices, "answer": position})
    return rows


POOL_BYTES = 2 << 20  # text per source that questions are made from: about 40,000 lines
CONTEXT_LINES, CONTEXT_BYTES, SHORTEST_CONTEXT_LINES = 10, 400, 3
SHORTEST_LINE = 16  # characters: `else:` or a lone brace cannot be predicted
LONGEST_LINE = 400  # bytes: a paragraph that is one line is cut there, since a model's context may be short
BIN = 48


class NextLine(TextTask):
    """Questions from the text of all sources: which of four lines comes next."""

    name = "next_line"
    metric = "acc_mutual_info"
    chance = CHANCE
    description = "which of four lines comes next"
    format = task_files.MULTIPLE_CHOICE

    def pool_bytes(self, options: TaskOptions) -> int:
        """Return the bytes of text per source from which lines are drawn."""
        return max(options.bytes_per_source, POOL_BYTES)

    def rows(self, text: ValidationText, options: TaskOptions) -> dict[str, list[Row]]:
        """Make `num_examples` questions, spread evenly over the sources and over the four positions of the answer.

        A source whose text gives no question is left out with a warning. Raises UserError if no source gives any.
        """
        lines: dict[str, list[Candidate]] = {}
        for source, pool in text.pools.items():
            of_source = [line for piece in first_bytes(pool, self.pool_bytes(options)) for line in _candidates(piece)]
            if draw(of_source, 1, random.Random(source), BIN):
                lines[source] = of_source
            else:
                reason = _reason(of_source)
                logger.warning("%s: source %s gives no question: %s", self.name, source, reason)
        if not lines:
            raise UserError(
                f"{text.origin}: no source ({', '.join(text.pools)}) gives a question for {self.name}, since {reason}; "
                f"omit {self.name} from the suite's tasks"
            )
        made: list[Row] = []
        for number, (source, of_source) in enumerate(lines.items()):
            share = options.num_examples // len(lines) + (number < options.num_examples % len(lines))
            rng = random.Random(f"{options.seed} {source}")
            found = [_question(line, wrong) for line, wrong in draw(of_source, share, rng, BIN)]
            if len(found) < share:
                logger.warning("%s: source %s gives %d examples, not %d", self.name, source, len(found), share)
            made += found
        return {self.name: balanced(made, random.Random(f"{options.seed} {self.name}"))}


def _reason(lines: Sequence[Candidate]) -> str:
    if not lines:
        return (
            f"no document of its validation text has a line of {SHORTEST_LINE} characters after "
            f"{SHORTEST_CONTEXT_LINES} others"
        )
    return (
        f"its validation text has no {CHOICES} different lines of similar length, from as many places, among "
        f"the {len(lines)} that come after {SHORTEST_CONTEXT_LINES} others"
    )


def _candidates(piece: Row) -> Iterator[Candidate]:
    """Yield the lines of a piece that are long enough and come after enough lines that are not blank."""
    num_filled = 0
    for number, text in enumerate(piece["text"].split("\n")):
        if num_filled >= SHORTEST_CONTEXT_LINES and len(text.strip()) >= SHORTEST_LINE:
            cut = text.encode()[:LONGEST_LINE].decode(errors="ignore")
            yield Candidate(cut, piece["id"], (piece, number))
        num_filled += bool(text.strip())


def _question(line: Candidate, wrong: Sequence[str]) -> Row:
    piece, number = line.origin
    return {
        "id": f"{piece['id']}:{number}",
        "document": piece["document"],
        "source": piece["source"],
        "context": _context(piece["text"].split("\n")[:number]),
        "right": _ended(line.text),
        "wrong": list(map(_ended, wrong)),
    }


def _ended(text: str) -> str:
    """Return a line with its end, which one that was cut does not have."""
    return text if len(text.encode()) > LONGEST_LINE - 4 else f"{text}\n"  # a character has up to 4 bytes


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
