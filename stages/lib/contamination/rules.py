"""Rules by which an item counts as contaminated.

gpt3    at least one of its 13-grams stands in the training text (arXiv 2005.14165, appendix C)
palm    at least 70% of its 8-grams stand in the training text (arXiv 2204.02311, section 8)

GPT-3 takes n per task, from 8 to 13, by the length of its items; here an item with fewer words than n, but at least
SHORTEST, is one n-gram as a whole. PaLM looks at question, prompt and target; here they are one text.
"""

from __future__ import annotations

from dataclasses import dataclass

from stages.lib.contamination.items import read_rows
from stages.lib.manifest import ContaminationManifest
from stages.lib.recipe import identity

FILE = "found_items.jsonl.gz"


def rate_of(made: ContaminationManifest, task: str) -> float | None:
    """Return the contaminated share of a task's items; None for a task without items."""
    found = made.identity["results"].get(task)
    return None if found is None else found["rate"]


def doc_ids(made: ContaminationManifest) -> dict[str, set[int]]:
    """Return {task: numbers of its contaminated documents}, for each task with items.

    Raises UserError if the file changed since the manifest was written.
    """
    ids: dict[str, set[int]] = {task: set() for task in made.identity["results"]}
    for row in read_rows(made):
        if row["contaminated"]:
            ids[row["task"]].add(row["doc_id"])
    return ids


SHORTEST = 8
"""Words of the shortest item that is checked: below it, GPT-3's authors found mostly matches by chance."""


@dataclass(frozen=True)
class Rule:
    """`n`: words of an n-gram by default. `share`: the smallest share of an item's n-grams; 0: one is enough."""

    n: int
    share: float

    def is_contaminated(self, found: int, total: int) -> bool:
        """Return True if an item is contaminated with `found` of its `total` n-grams in the training text."""
        return found > 0 and found >= self.share * total


RULES = {"gpt3": Rule(n=13, share=0), "palm": Rule(n=8, share=0.7)}


@dataclass(frozen=True, kw_only=True)
class ContaminationRecipe:
    """The search for the suites' items in the training text of the corpora."""

    rule: str = identity("gpt3", choices=tuple(RULES))
    """gpt3: an item of a suite is contaminated if one of its n-grams stands in the training text. palm: if at least 70%
    of its n-grams do. Without `contamination` in the config nothing is searched; `contamination: {}` searches with the
    defaults."""

    n: int | None = identity(None, minimum=4, maximum=100)
    """Words per n-gram. Default: 13 for gpt3, 8 for palm."""

    @property
    def ngram(self) -> int:
        """Words per n-gram."""
        return RULES[self.rule].n if self.n is None else self.n
