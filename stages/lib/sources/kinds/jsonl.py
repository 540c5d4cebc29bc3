"""The kind `jsonl`: JSON lines, one document each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from stages.lib.sources import compressed, lines
from stages.lib.sources.kinds import json_lines
from stages.lib.sources.kinds.kind import DOCUMENT_FIELDS, JSON_LINES_ENDINGS, SourceKind

if TYPE_CHECKING:
    from stages.lib.sources.source_fields import SourceFields
    from stages.lib.sources.spans import Span


class Jsonl(SourceKind):
    """A document is a line that holds a JSON object."""

    name = "jsonl"
    fields = ("text_field", "id_field", "split_field", *DOCUMENT_FIELDS)
    endings = JSON_LINES_ENDINGS
    is_readable = True
    has_json_lines = True

    def can_be_cut(self, name: str) -> bool:
        """Return True if a file is not compressed."""
        return not compressed.is_compressed(name)

    def cut_positions(self, name: str, size: int) -> list[int] | None:
        """Return None, any byte, if the file is not compressed."""
        return None if self.can_be_cut(name) else [0]

    def extent(self, span: Span) -> tuple[int, int | None]:
        """Return the bytes of the lines that begin in a span."""
        return (0, None) if span.end is None else lines.extent(span)

    def records(self, recipe: SourceFields, span: Span) -> Iterator[tuple[str, dict[str, Any] | str]]:
        """Yield (id, mapping) of each line that is not blank."""
        return json_lines.records(span)
