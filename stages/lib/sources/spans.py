"""The division of a source into parts, by bytes: a part is a share of the bytes of all files in the list's order.

A file larger than WHOLE_BYTES that can be read from its middle (lines, row groups) is cut where a share ends. Other
files stay whole and belong to the share that holds their middle. A span of a cut file gives each record whose first
byte lies in it, so every record is in one part, wherever the cuts fall.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from stages.lib.manifest_types import ListedFile

WHOLE_BYTES = 16 << 20
"""Files up to this size are never cut: one part reads all of them."""


@dataclass(frozen=True)
class Span:
    """The records of a file that begin in its bytes [first, end); all of them if `end` is None."""

    name: str
    first: int = 0
    end: int | None = None

    def __contains__(self, position: int) -> bool:
        """Return True if a record that begins at a position belongs to the span."""
        return self.first <= position and (self.end is None or position < self.end)


def whole(names: Iterable[str]) -> list[Span]:
    """Return spans of whole files."""
    return [Span(name) for name in names]


def of_part(listed: Sequence[ListedFile], part: int, parts: int, can_be_cut: Callable[[str], bool]) -> list[Span]:
    """Return the spans of part number `part` of `parts`.

    `can_be_cut(name)`: True if a file can be read from its middle.
    """
    total = sum(file["bytes"] for file in listed)
    first, end = (-(-number * total // parts) for number in (part, part + 1))
    spans, before = [], 0
    for file in listed:
        name, size = file["name"], file["bytes"]
        if size > WHOLE_BYTES and can_be_cut(name):
            begin, stop = max(0, first - before), min(size, end - before)
            if (begin, stop) == (0, size):
                spans.append(Span(name))
            elif begin < stop:
                spans.append(Span(name, begin, stop))
        elif min(parts - 1, int((before + size / 2) * parts / max(1, total))) == part:
            spans.append(Span(name))
        before += size
    return spans
