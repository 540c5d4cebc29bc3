"""The records of JSON lines files."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from typing import Any

from stages.lib.sources import compressed, lines
from stages.lib.sources.spans import Span

BLANK = ""  # in place of a record: a blank line does not count as one


def records(span: Span) -> Iterator[tuple[str, dict[str, Any] | str]]:
    """Yield (id, mapping) of each line that is not blank; a malformed line is its reason, a str."""
    with compressed.open_binary(span.name) as file:
        for number, (position, entry) in enumerate(lines.lines_of(file, span, _parsed), 1):
            if entry != BLANK:
                identifier = f"{span.name}:{number}" if span.end is None else f"{span.name}@{position}"
                yield identifier, lines.TOO_LONG if entry is None else entry


def _parsed(position: int, line: bytes) -> dict[str, Any] | str:
    """Return a line as a mapping; the reason if it is malformed; or BLANK."""
    import orjson

    if line.isspace():
        return BLANK
    try:
        entry = orjson.loads(line.removeprefix(codecs.BOM_UTF8) if position == 0 else line)
    except orjson.JSONDecodeError:  # a lone surrogate and invalid UTF-8 as well
        return "not JSON"
    return entry if isinstance(entry, dict) else {}
