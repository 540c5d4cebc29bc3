"""Questions of four choices that are right by chance for who does not read the question.

All that could be asked for is sorted by length and cut into bins; a question's four choices come from one bin, as often
as they occur in it. So the right choice is no more common and no longer than the others, nor otherwise recognisable.
"""

from dataclasses import dataclass

CHOICES = 4
WIDEST_BIN = 1.5  # the longest of a bin by its shortest; where lengths are sparse nothing is asked


@dataclass(frozen=True)
class Candidate:
    """Something that can be asked for, and chosen: `origin` is the caller's. It is no wrong choice in its own group."""

    text: str
    group: str
    origin: object

    @property
    def num_bytes(self):
        """The length that bins are made by."""
        return len(self.text.encode())


def draw(candidates, count, chance, bin_size):
    """Up to `count` of the candidates, none twice, each with three wrong choices: [(Candidate, [text])].

    `chance`: a random.Random. `bin_size`: how many neighbours by length the choices of a question come from.
    """
    ordered = list(candidates)
    chance.shuffle(ordered)  # else those of one length would stand in the order of the text
    ordered.sort(key=_length)
    order = list(range(len(ordered)))
    chance.shuffle(order)
    drawn = []
    for at in order:
        if len(drawn) == count:
            break
        first = at - at % bin_size
        wrong = _wrong_for(ordered[at], ordered[first : first + bin_size], chance)
        if wrong is not None:
            drawn.append((ordered[at], wrong))
    return drawn


def _length(candidate):
    return candidate.num_bytes


def _wrong_for(right, nearby, chance):
    """Three texts out of one bin, of other groups, unlike `right` and each other; None where that cannot be."""
    if nearby[-1].num_bytes > WIDEST_BIN * nearby[0].num_bytes:
        return None
    taken = {right.text.strip(): right.text}
    for other in chance.sample(nearby, len(nearby)):
        if other.group != right.group:
            taken.setdefault(other.text.strip(), other.text)
        if len(taken) == CHOICES:
            return list(taken.values())[1:]
    return None


def balanced(questions, chance):
    """The questions in another order, their answers as evenly over the four positions as can be.

    A question has `right` and `wrong`, and gets `choices` and `answer` instead.
    """
    chance.shuffle(questions)
    positions = [number % CHOICES for number in range(len(questions))]
    chance.shuffle(positions)
    return [_placed(question, at) for question, at in zip(questions, positions, strict=True)]


def _placed(question, position):
    choices = list(question["wrong"])
    choices.insert(position, question["right"])
    kept = {key: value for key, value in question.items() if key not in ("right", "wrong")}
    return kept | {"choices": choices, "answer": position}
