"""Questions of four choices that a model without the context answers right by chance.

All candidates are sorted by length and cut into bins; a question's four choices come from one bin, each candidate with
the same probability. So the right choice is no more common and no longer than the others.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from stages.lib.scoring.tasks.task import Row

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
    ordered.sort(key=_length)
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


def _length(candidate: Candidate) -> int:
    return candidate.num_bytes


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
    return [_placed(question, at) for question, at in zip(questions, positions, strict=True)]


def _placed(question: Row, position: int) -> Row:
    choices = list(question["wrong"])
    choices.insert(position, question["right"])
    kept = {key: value for key, value in question.items() if key not in ("right", "wrong")}
    return kept | {"choices": choices, "answer": position}
