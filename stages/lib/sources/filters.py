"""Which documents are left out for what they look like: simple measures, taken of many documents at once.

They are of the kind of Gopher's rules (arXiv 2112.11446, table A1): what is cheap, and says at first sight that a text
is a menu, a table of numbers or a page of one line repeated.
"""

import dataclasses
from dataclasses import dataclass

import numpy as np

from stages.lib.errors import UserError
from stages.lib.recipe import identity

SPACE = r"\s\v\x1c-\x1f\x85\p{Z}"
"""White space as str.isspace() knows it: \\s of Arrow's expressions is that of ASCII."""
WORD = rf"[^{SPACE}]+"
LINES_CHARACTERS = 1 << 20  # of a text, whose lines are looked at: the shortest of them take a hundred times their room
SYMBOL = rf"[^\p{{L}}\p{{M}}\p{{N}}{SPACE}]"


@dataclass(frozen=True, kw_only=True)
class FilterRecipe:
    """What a document must be like; others are left out and counted. Nothing is left out by default."""

    min_bytes: int | None = identity(None, minimum=1)
    """The least bytes of text."""

    max_bytes: int | None = identity(None, minimum=1)
    """The most bytes of text."""

    min_words: int | None = identity(None, minimum=1)
    """The least words: runs of anything but white space."""

    max_words: int | None = identity(None, minimum=1)
    """The most words."""

    max_symbols: float | None = identity(None, minimum=0, maximum=1)
    """The largest share of characters that are neither letter, mark, digit nor white space."""

    max_repeated_lines: float | None = identity(None, minimum=0, maximum=1)
    """The largest share of the text's bytes in lines that stood in the document before; blank lines do not count. Of a
    longer text the first 1,048,576 characters are looked at."""

    def check(self, where):
        """Raise UserError where a least is above its most."""
        for what in ("bytes", "words"):
            least, most = getattr(self, f"min_{what}"), getattr(self, f"max_{what}")
            if least is not None and most is not None and least > most:
                raise UserError(f"{where}.min_{what} must be at most {where}.max_{what} ({most}), got {least}")

    @property
    def some(self):
        """Whether there is anything to be held against."""
        return any(getattr(self, field.name) is not None for field in dataclasses.fields(self))


def faults(recipe, texts):
    """For each text the first field of the recipe that it breaks, as `filters.FIELD`; None where it breaks none."""
    import pyarrow

    column = pyarrow.array(texts, pyarrow.large_string())
    found = np.full(len(texts), None, dtype=object)
    measured = {}
    for field in dataclasses.fields(recipe):
        bound = getattr(recipe, field.name)
        if bound is None:
            continue
        side, _, what = field.name.partition("_")
        if what not in measured:
            measured[what] = MEASURES[what](column)
        broken = measured[what] < bound if side == "min" else measured[what] > bound
        found[broken & (found == None)] = f"filters.{field.name}"  # noqa: E711 (of each element)
    return found.tolist()


def _bytes(column):
    import pyarrow.compute as pc

    return pc.binary_length(column).to_numpy()


def _words(column):
    import pyarrow.compute as pc

    return pc.count_substring_regex(column, WORD).to_numpy()


def _symbols(column):
    import pyarrow.compute as pc

    symbols = pc.count_substring_regex(column, SYMBOL).to_numpy()
    return symbols / np.maximum(1, pc.utf8_length(column).to_numpy())


def _repeated_lines(column):
    import pyarrow.compute as pc

    split = pc.split_pattern(pc.utf8_slice_codeunits(column, 0, LINES_CHARACTERS), "\n")
    lines = pc.utf8_trim_whitespace(pc.list_flatten(split))
    sizes = pc.binary_length(lines).to_numpy()
    owners = pc.list_parent_indices(split).to_numpy()
    kinds = lines.dictionary_encode()
    keys = owners * len(kinds.dictionary) + kinds.indices.to_numpy()
    again = np.ones(len(keys), dtype=bool)
    again[np.unique(keys, return_index=True)[1]] = False
    repeated, total = (np.bincount(owners, weights=some, minlength=len(column)) for some in (sizes * again, sizes))
    return repeated / np.maximum(1, total)


MEASURES = {"bytes": _bytes, "words": _words, "symbols": _symbols, "repeated_lines": _repeated_lines}
