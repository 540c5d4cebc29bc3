"""Filters of documents by measures of their text, taken of many documents at once.

Bounds on single measures are cheap, and enough to find a menu, a table of numbers or a page of one repeated line; the
sets of rules with names are published ones: see quality_rules.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stages.lib.recipe import identity
from stages.lib.sources import quality_rules
from stages.lib.sources.quality_rules import C4Quality, FinewebQuality, GopherQuality, GopherRepetition

if TYPE_CHECKING:  # the workflow reads the recipe, and may run without packages
    import numpy as np
    import pyarrow

SPACE = r"\s\v\x1c-\x1f\x85\p{Z}"
"""White space as of str.isspace(); \\s of Arrow's expressions is that of ASCII."""
WORD = rf"[^{SPACE}]+"
SYMBOL = rf"[^\p{{L}}\p{{M}}\p{{N}}{SPACE}]"


@dataclass(frozen=True, kw_only=True)
class FilterRecipe:
    """The conditions that a document must meet; others are filtered and counted. By default nothing is filtered."""

    min_bytes: int | None = identity(None, minimum=1)
    """The minimum number of bytes of text."""

    max_bytes: int | None = identity(None, minimum=1)
    """The maximum number of bytes of text."""

    min_words: int | None = identity(None, minimum=1)
    """The minimum number of words: runs of characters that are not white space."""

    max_words: int | None = identity(None, minimum=1)
    """The maximum number of words."""

    max_symbols: float | None = identity(None, minimum=0, maximum=1)
    """The maximum share of characters that are neither letter, mark, digit nor white space."""

    max_repeated_lines: float | None = identity(None, minimum=0, maximum=1)
    """The maximum share of the text's bytes in lines that repeat an earlier line of the document; blank lines do not
    count. Only the first 1,048,576 characters of a text are measured."""

    gopher_repetition: GopherRepetition | None = identity(None, switch=True)
    """Gopher's rules about repeated lines, paragraphs and runs of words; `{}` for the published thresholds."""

    gopher_quality: GopherQuality | None = identity(None, switch=True)
    """Gopher's rules about words and lines; `{}` for the published thresholds. Its stop words are English."""

    c4_quality: C4Quality | None = identity(None, switch=True)
    """C4's rules; `{}` for the published ones. They remove lines, so text that stays may be shorter."""

    fineweb_quality: FinewebQuality | None = identity(None, switch=True)
    """FineWeb's rules beside those of Gopher and C4; `{}` for the published thresholds. The sets of rules are applied
    in this order, as for FineWeb, each to the text that those before it leave."""

    def check(self, where: str) -> None:
        """Raise UserError if a minimum is above its maximum."""
        quality_rules.check_ranges(self, where, "bytes", "words")

    @property
    def some(self) -> bool:
        """True if any filter is set."""
        return any(getattr(self, field.name) is not None for field in dataclasses.fields(self))


def judged(recipe: FilterRecipe, texts: Sequence[str]) -> list[tuple[str | None, str]]:
    """Return for each text the first rule that it breaks, as `filters.KEY`, or None, and the text that stays of it."""
    kept = list(texts)
    reasons = _first_broken(recipe, kept)
    batch = quality_rules.Batch(kept)
    for name in ("gopher_repetition", "gopher_quality", "c4_quality", "fineweb_quality"):
        rules = getattr(recipe, name)
        if rules is None:
            continue
        if name == "c4_quality":
            cleaned = [quality_rules.c4_quality(rules, text) for text in kept]
            found, kept = [reason for reason, _ in cleaned], [text for _, text in cleaned]
            batch = quality_rules.Batch(kept)
        else:
            found = getattr(quality_rules, name)(rules, batch)
        reasons = [earlier or (reason and f"filters.{reason}") for earlier, reason in zip(reasons, found, strict=True)]
    return list(zip(reasons, kept, strict=True))


def _first_broken(recipe: FilterRecipe, texts: Sequence[str]) -> list[str | None]:
    """Return for each text the first bound on a single measure that it does not keep, as `filters.KEY`, or None."""
    import numpy as np
    import pyarrow

    column = pyarrow.array(texts, pyarrow.large_string())
    found = np.full(len(texts), None, dtype=object)
    measured = {}
    for field in dataclasses.fields(recipe):
        bound_name, _, what = field.name.partition("_")
        bound = getattr(recipe, field.name)
        if what not in MEASURES or bound is None:
            continue
        if what not in measured:
            measured[what] = MEASURES[what](column)
        broken = measured[what] < bound if bound_name == "min" else measured[what] > bound
        found[broken & (found == None)] = f"filters.{field.name}"  # noqa: E711 (of each element)
    return found.tolist()


def _bytes(column: pyarrow.Array) -> np.ndarray:
    import pyarrow.compute as pc

    return pc.binary_length(column).to_numpy()


def _words(column: pyarrow.Array) -> np.ndarray:
    import pyarrow.compute as pc

    return pc.count_substring_regex(column, WORD).to_numpy()


def _symbols(column: pyarrow.Array) -> np.ndarray:
    import numpy as np
    import pyarrow.compute as pc

    symbols = pc.count_substring_regex(column, SYMBOL).to_numpy()
    return symbols / np.maximum(1, pc.utf8_length(column).to_numpy())


def _repeated_lines(column: pyarrow.Array) -> np.ndarray:
    import numpy as np
    import pyarrow.compute as pc

    split = pc.split_pattern(pc.utf8_slice_codeunits(column, 0, quality_rules.MEASURED_CHARACTERS), "\n")
    lines = pc.utf8_trim_whitespace(pc.list_flatten(split))
    sizes = pc.binary_length(lines).to_numpy()
    owners = pc.list_parent_indices(split).to_numpy()
    distinct = lines.dictionary_encode()
    keys = owners * len(distinct.dictionary) + distinct.indices.to_numpy()
    again = np.ones(len(keys), dtype=bool)
    again[np.unique(keys, return_index=True)[1]] = False
    repeated, total = (np.bincount(owners, weights=some, minlength=len(column)) for some in (sizes * again, sizes))
    return repeated / np.maximum(1, total)


MEASURES = {"bytes": _bytes, "words": _words, "symbols": _symbols, "repeated_lines": _repeated_lines}
