"""Word sequences that stand, word for word, in another place too: validation text must not be read in training."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping

Words = tuple[str, ...]


def words_of(text: str) -> Words:
    """Return the words of a text; line ends, spaces and punctuation do not count."""
    return tuple(re.findall(r"\w+", text))


def repeated(
    owners: Mapping[Words, Collection[Hashable]], places: Iterable[tuple[Hashable, Words]], opening: int
) -> set[Words]:
    """Return the word sequences that belong to several places, or stand in a row in the words of another place.

    `owners`: {sequence: the places that it belongs to}. `places`: (place, words) of all text that is searched.
    `opening`: the number of first words by which a sequence is looked up; each sequence must have as many.
    """
    by_opening = defaultdict(list)
    for sequence in owners:
        by_opening[sequence[:opening]].append(sequence)
    found = {sequence for sequence, its_places in owners.items() if len(its_places) > 1}
    for place, words in places:
        for start in range(len(words) - opening + 1):
            for sequence in by_opening.get(words[start : start + opening], ()):
                if (
                    sequence not in found
                    and place not in owners[sequence]
                    and words[start : start + len(sequence)] == sequence
                ):
                    found.add(sequence)
    return found
