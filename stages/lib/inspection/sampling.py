"""Which bytes of a source are looked at: all of a small one, else what stands at its beginning, middle and end."""

from dataclasses import dataclass

from stages.lib.sources import records, spans, tables
from stages.lib.sources.spans import Span

WHERE = ("beginning", "middle", "end")
READ_WHOLE = ("python-prose", "python-docstrings")  # a docstring is looked up in all modules in any case


@dataclass(frozen=True)
class Place:
    """A place in a source's list of files: `where` it is, the `spans` to read there, and how many `bytes` they have."""

    where: str
    spans: list
    bytes: int


def places(recipe, files, at_most):
    """The places of a source that are looked at, together about `at_most` bytes.

    `files`: [{"name", "bytes"}]. A file that cannot be entered in the middle is there as a whole, so that whoever reads
    must stop by himself.
    """
    total = sum(file["bytes"] for file in files)
    if total <= at_most or recipe.kind in READ_WHOLE:
        return [Place("all", spans.whole(file["name"] for file in files), total)]
    each = at_most // len(WHERE)
    taken, found = set(), []
    for where, position in zip(WHERE, (0, (total - each) // 2, total - each), strict=True):
        pieces = []
        for span, size in _from(recipe, files, position, each):
            if (span.name, span.first) not in taken:
                taken.add((span.name, span.first))
                pieces.append((span, size))
        if pieces:
            found.append(Place(where, [span for span, _ in pieces], sum(size for _, size in pieces)))
    return found


def _from(recipe, files, position, count):
    """(span, its bytes) from a position in all bytes of a list on, until they are `count` bytes."""
    before, left = 0, count
    for file in files:
        name, size = file["name"], file["bytes"]
        if left > 0 and before + size > position:
            span, held = _span(recipe, name, size, max(0, position - before), left)
            yield span, held
            left -= held
        before += size


def _span(recipe, name, size, begin, count):
    """(span, its bytes) of what a file holds at a byte: lines, a piece of a text, a row group; or the file."""
    if recipe.kind == "jsonl" and records.can_be_cut(recipe, name):
        end = min(size, begin + count)
        return (Span(name) if (begin, end) == (0, size) else Span(name, begin, end)), end - begin
    if recipe.kind == "text" and records.can_be_cut(recipe, name) and size > records.PIECE_BYTES:
        bounds = [*range(0, size, records.PIECE_BYTES), size]
    elif recipe.kind == "parquet":
        bounds = [*tables.group_begins(name), size]
    else:
        return Span(name), size
    first = max((bound for bound in bounds[1:-1] if bound <= begin), default=0)
    end = min((bound for bound in bounds[1:] if bound >= begin + count), default=size)
    return (Span(name) if (first, end) == (0, size) else Span(name, first, end)), end - first
