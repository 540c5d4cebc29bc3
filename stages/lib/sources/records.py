"""The records of files: lines of JSON, texts, and rows of tables. Each is read as a stream, from a Span on.

A reader yields (id, record). A record that is a text says why it is none. The ids of records of a cut file name the
position in the file in place of the number in it, which nobody knows there.
"""

import codecs

from stages.lib.sources import compressed, tables
from stages.lib.sources.spans import WHOLE_BYTES, Span

PIECE_BYTES = WHOLE_BYTES
"""A text of more bytes is cut into documents: one begins with the first line behind each multiple of it."""

TOO_LONG = f"a line longer than {compressed.LINE_BYTES >> 20} MiB"
BLANK = ""  # in place of a record: the line is not even counted


def lines(_, span):
    """The lines of a file that hold JSON objects, as mappings."""
    with compressed.opened(span.name) as file:
        for number, (position, entry) in enumerate(compressed.lines(file, span, _parsed), 1):
            if entry is not BLANK:
                identifier = f"{span.name}:{number}" if span.end is None else f"{span.name}@{position}"
                yield identifier, TOO_LONG if entry is None else entry


def _parsed(position, line):
    """A line of JSON as a mapping; why it is none; or BLANK."""
    import orjson

    if line.isspace():
        return BLANK
    try:
        entry = orjson.loads(line.removeprefix(codecs.BOM_UTF8) if position == 0 else line)
    except orjson.JSONDecodeError:  # a lone surrogate and invalid UTF-8 as well
        return "not JSON"
    return entry if isinstance(entry, dict) else {}


def texts(_, span):
    """A file's text as bytes: one record, or one for each piece of a large one."""
    if span.end is None:
        with compressed.opened(span.name) as file:
            text = file.read(PIECE_BYTES + 1)
        if len(text) <= PIECE_BYTES:
            yield span.name, text
            return
    with compressed.opened(span.name) as file:
        gathered, at = [], None
        for position, line in compressed.lines(file, _of_pieces(span)):
            if position // PIECE_BYTES != at:
                if gathered:
                    yield f"{span.name}#{at}", b"".join(gathered)
                gathered, at = [], position // PIECE_BYTES
            if line is None:
                yield f"{span.name}@{position}", TOO_LONG
            else:
                gathered.append(line)
        if gathered:
            yield f"{span.name}#{at}", b"".join(gathered)


def _of_pieces(span):
    """The span of the pieces that begin in a span."""
    first, end = (bound and -(-bound // PIECE_BYTES) * PIECE_BYTES for bound in (span.first, span.end))
    return Span(span.name, first, end)


def extent(recipe, span):
    """The bytes [first, end) of a file that hold the records of a span; `end` is None for the file's end."""
    if span.end is None:
        return 0, None
    if recipe.kind == "parquet":
        return span.first, min((begin for begin in tables.group_begins(span.name) if begin >= span.end), default=None)
    if recipe.kind == "text":
        span = _of_pieces(span)
    with compressed.opened(span.name) as file:
        bounds = [next(compressed.lines(file, Span(span.name, bound)), (None,))[0] for bound in (span.first, span.end)]
    return bounds[0] or 0, bounds[1]


READERS = {"text": texts, "jsonl": lines, "parquet": tables.parquet_rows, "arrow": tables.arrow_rows}
"""By the kind of a source."""


def can_be_cut(recipe, name):
    """Whether a file can be read from its middle."""
    return recipe.kind == "parquet" or (recipe.kind in ("text", "jsonl") and not compressed.is_packed(name))
