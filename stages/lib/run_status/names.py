"""Names of runs in a column that is too narrow for them: those of a sweep begin alike."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

SEPARATORS = re.compile("[-_]")


def shortened(names: Iterable[str], width: int) -> dict[str, str]:
    """Return {name: what to show of it}. Of names that are too long for the width, what tells them apart is left.

    `lr-learning_rate_0.001-seed_0` beside others of the sweep becomes `lr-0.001-0`: the words that all of them have are
    left out, except the first. The result may still be too long.
    """
    shown, alike = {}, defaultdict(list)
    for name in names:
        shown[name] = name
        if len(name) > width:
            words = SEPARATORS.split(name)
            alike[words[0], len(words)].append((name, words))
    for group in alike.values():
        differ = [len(set(column)) > 1 for column in zip(*(words for _, words in group), strict=True)]
        for name, words in group:
            kept = [word for word, is_own in zip(words[1:], differ[1:], strict=True) if is_own]
            shown[name] = "-".join([words[0], *kept]) if kept else name
    return shown
