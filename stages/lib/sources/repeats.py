"""Which texts stand, word for word, in another place too: what is held out of training must not be read elsewhere."""

import re
from collections import defaultdict


def words_of(text):
    """The words of a text; line ends, spaces and punctuation do not count."""
    return tuple(re.findall(r"\w+", text))


def repeated(owners, places, opening):
    """Those of some word sequences that belong to several places, or stand in a row in the words of another.

    `owners`: {sequence: the places that it belongs to}. `places`: (place, words) of all that is looked through.
    `opening`: by how many of its first words a sequence is looked up; each must have so many.
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
