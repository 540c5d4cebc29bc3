"""The sample of a source that is read: all of a small one, else its beginning, middle and end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stages.lib.sources import spans
from stages.lib.sources.kinds.registry import kind_of
from stages.lib.sources.spans import Span

if TYPE_CHECKING:
    from stages.lib.sources.kinds.kind import SourceKind
    from stages.lib.sources.source import SourceRecipe

WHERE = ("beginning", "middle", "end")


@dataclass(frozen=True)
class Place:
    """A place in a source's list of files: `spans` to read at `where`, and their size in `bytes`."""

    where: str
    spans: list[Span]
    bytes: int


def places(recipe: SourceRecipe, files: Sequence[Mapping[str, Any]], at_most: int) -> list[Place]:
    """Return the places of a source to read, together about `at_most` bytes.

    `files`: [{"name", "bytes"}]. A file that cannot be read from its middle is one whole span, so the reader must stop
    by itself.
    """
    kind, total = kind_of(recipe), sum(file["bytes"] for file in files)
    if total <= at_most or kind.needs_every_file:
        return [Place("all", spans.whole(file["name"] for file in files), total)]
    each = at_most // len(WHERE)
    taken, places = set(), []
    for where, position in zip(WHERE, (0, (total - each) // 2, total - each), strict=True):
        place = Place(where, [], 0)
        for span, size in _spans_from(kind, files, position, each):
            if (span.name, span.first) not in taken:
                taken.add((span.name, span.first))
                place = Place(where, [*place.spans, span], place.bytes + size)
        if place.spans:
            places.append(place)
    return places


def _spans_from(
    kind: SourceKind, files: Sequence[Mapping[str, Any]], position: int, count: int
) -> Iterator[tuple[Span, int]]:
    """Yield (span, its bytes) of `count` bytes from a position in all bytes of the files on."""
    before, left = 0, count
    for file in files:
        name, size = file["name"], file["bytes"]
        if left > 0 and before + size > position:
            begin = max(0, position - before)
            positions = kind.cut_positions(name, size)
            if positions is None:
                first, end = begin, min(size, begin + left)
            else:
                bounds = [*positions, size]
                first = max((bound for bound in bounds[1:-1] if bound <= begin), default=0)
                end = min((bound for bound in bounds[1:] if bound >= begin + left), default=size)
            yield Span(name) if (first, end) == (0, size) else Span(name, first, end), end - first
            left -= end - first
        before += size
