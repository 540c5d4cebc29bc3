"""The kinds `datatrove`, `dolma` and `nemo_curator`: directories as these tools write them.

Their files are JSON lines or parquet with the text in `text`; documents keep the ids that the tool gave them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from stages.lib.sources.entries import Document, Malformed
from stages.lib.sources.kinds import lines, tables
from stages.lib.sources.kinds.kind import DOCUMENT_FIELDS, JSON_LINES_ENDINGS, SourceFields, document_of_fields
from stages.lib.sources.kinds.lines import Jsonl
from stages.lib.sources.kinds.tables import PARQUET, LinesOrRows, Parquet
from stages.lib.sources.spans import Span

JSONL = Jsonl()


class Dataset(LinesOrRows):
    """A document is a line or a row with `text`, and its id the first of `id_fields` that it has."""

    fields = ("split_field", *DOCUMENT_FIELDS)
    id_fields: tuple[str, ...] = ("id",)

    def _form(self, name: str) -> Jsonl | Parquet:
        return PARQUET if self.is_table(name) else JSONL

    def can_be_cut(self, name: str) -> bool:
        """Return True for parquet, and JSON lines that are not compressed."""
        return self._form(name).can_be_cut(name)

    def cut_positions(self, name: str, size: int) -> Sequence[int] | None:
        """Return the positions of row groups; None, any byte, for lines."""
        return self._form(name).cut_positions(name, size)

    def extent(self, span: Span) -> tuple[int, int | None]:
        """Return the bytes of the lines or row groups that begin in a span."""
        return self._form(span.name).extent(span)

    def records(self, recipe: SourceFields, span: Span) -> Iterator[tuple[str, Any]]:
        """Yield (id, fields) of each record."""
        if self._form(span.name) is JSONL:
            return lines.records(span)
        schema = PARQUET.schema(span.name)[0]
        ids = [field for field in self.id_fields if tables.has_column(schema, field)]
        return PARQUET.rows([recipe.text_field, recipe.split_field, *ids], span)

    def document(self, recipe: SourceFields, identifier: str, record: Any) -> Document | Malformed:
        """Return the document of a record, with its own id if it has one."""
        own = (str(record[field]) for field in self.id_fields if isinstance(record.get(field), str | int))
        return document_of_fields(recipe, next(own, identifier), record)


class Datatrove(Dataset):
    """JSON lines or parquet by datatrove's writers: text, id and metadata, a mapping or with columns of its own."""

    name = "datatrove"


class Dolma(Dataset):
    """The documents of a Dolma dataset. Its attributes, in a folder beside them, are left out: `dolma mix` applies
    them.
    """

    name = "dolma"
    endings = JSON_LINES_ENDINGS

    def takes(self, path: str) -> bool:
        """Return True unless a file is one of attributes, which mirror the folder `documents` beside them."""
        return (
            next((part for part in reversed(path.split("/")) if part in ("documents", "attributes")), "")
            != "attributes"
        )


class NemoCurator(Dataset):
    """JSON lines or parquet by NeMo Curator's writers: text, and id or url if a step added them."""

    name = "nemo_curator"
    id_fields = ("id", "url")
