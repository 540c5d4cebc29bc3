"""How the work on a source is divided: by bytes. A part is a share of the bytes of all files, neighbours in the list.

A file that is larger than WHOLE_BYTES and can be entered in the middle (lines, row groups) is cut where a share ends;
the others stay whole and belong to the share that their middle lies in. What a cut file gives is each record whose
first byte lies in the span, so that every record is in one part, wherever the cuts fall.
"""

from dataclasses import dataclass

WHOLE_BYTES = 16 << 20
"""Files up to this size are never cut: what lies in them is read by one part."""


@dataclass(frozen=True)
class Span:
    """The records of a file that begin in its bytes [first, end); all of them where `end` is None."""

    name: str
    first: int = 0
    end: int | None = None

    def __contains__(self, position):
        """Whether a record that begins at a position is one of the span's."""
        return self.first <= position and (self.end is None or position < self.end)


def whole(names):
    """Spans of whole files."""
    return [Span(name) for name in names]


def of_part(listed, part, parts, can_be_cut):
    """The spans of part number `part` of `parts`.

    `listed`: [{"name", "bytes"}]. `can_be_cut(name)`: whether a reader can begin in the middle of a file.
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
