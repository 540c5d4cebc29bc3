"""The kind `parquet`: the rows of parquet files, read by row groups."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from stages.lib.sources import storage
from stages.lib.sources.kinds import tables
from stages.lib.sources.kinds.kind import FIELDS_OF_TABLE, SourceKind

if TYPE_CHECKING:
    import pyarrow
    from pyarrow import parquet

    from stages.lib.sources.kinds.kind import SourceFields
    from stages.lib.sources.spans import Span

LARGE_GROUP_BYTES = 64 << 20  # a larger row group is read by few rows at a time
BUFFER_BYTES = 1 << 20


class Parquet(SourceKind):
    """A document is a row. A page is held in memory as a whole."""

    name = "parquet"
    fields = FIELDS_OF_TABLE
    endings = (".parquet",)
    owns_endings = True
    has_columns = True

    def can_be_cut(self, name: str) -> bool:
        """Return True: a file is cut between row groups."""
        return True

    def cut_positions(self, name: str, size: int) -> list[int]:
        """Return the positions of the row groups."""
        return _group_positions(name)

    def extent(self, span: Span) -> tuple[int, int | None]:
        """Return the bytes of the row groups that begin in a span."""
        if span.end is None:
            return 0, None
        return span.first, min((begin for begin in _group_positions(span.name) if begin >= span.end), default=None)

    def records(self, recipe: SourceFields, span: Span) -> Iterator[tuple[str, tables.Row]]:
        """Yield (id, row), a row as a mapping of the columns that the recipe names."""
        return self.rows(tables.fields_of_document(recipe), span)

    def rows(self, fields: Sequence[str | None], span: Span) -> Iterator[tuple[str, tables.Row]]:
        """Yield (id, row) of a span; `fields`: the columns, None for one that is not read."""
        from pyarrow import parquet

        options = {"buffer_size": BUFFER_BYTES, "page_checksum_verification": True}  # if the file has checksums
        with (
            tables.arrow_errors(span.name),
            storage.open_binary(span.name) as raw,
            parquet.ParquetFile(raw, **options) as file,
        ):
            columns = tables.columns_to_read(fields, file.schema_arrow, span.name)
            outer = tables.outer_columns(columns, file.schema_arrow)
            groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
            _check_rows("its row groups have", sum(group.num_rows for group in groups), file.metadata.num_rows)
            before = 0
            for number, group in enumerate(groups):
                if _position_of(group) in span:
                    rows = _rows_at_once(file.schema_arrow, outer, group)
                    batches = file.iter_batches(rows, row_groups=[number], columns=columns)
                    found = (tables.flattened(batch, columns) for batch in _complete(batches, number, group))
                    slices = (rows for batch in found for rows in tables.slices_of(batch))
                    yield from tables.numbered_rows(span.name, before, slices)
                before += group.num_rows

    def schema(self, name: str) -> tuple[pyarrow.Schema, list[Any] | None]:
        """Return (Arrow schema, values of the first row or None without one) of a file."""
        from pyarrow import parquet

        with (
            tables.arrow_errors(name),
            storage.open_binary(name) as raw,
            parquet.ParquetFile(raw, buffer_size=BUFFER_BYTES) as file,
        ):
            return file.schema_arrow, tables.first_row(file.iter_batches(1))


def _complete(
    batches: Iterable[pyarrow.RecordBatch], number: int, group: parquet.RowGroupMetaData
) -> Iterator[pyarrow.RecordBatch]:
    """Yield the batches of a row group. Raises OSError if rows are missing.

    A damaged page header ends its column early, and Arrow does not report it.
    """
    found = 0
    for batch in batches:
        found += batch.num_rows
        yield batch
    _check_rows(f"row group {number} has", found, group.num_rows)


def _check_rows(what: str, found: int, expected: int) -> None:
    if found != expected:
        raise OSError(f"{what} {found} rows in place of {expected}")


def _group_positions(name: str) -> list[int]:
    """Return the positions of the first bytes of a file's row groups."""
    from pyarrow import parquet

    with tables.arrow_errors(name), storage.open_binary(name) as raw, parquet.ParquetFile(raw) as file:
        return [_position_of(file.metadata.row_group(number)) for number in range(file.num_row_groups)]


def _position_of(group: parquet.RowGroupMetaData) -> int:
    """Return the position of a row group's first byte."""
    columns = (group.column(number) for number in range(group.num_columns))
    return min(
        position
        for column in columns
        for position in (column.dictionary_page_offset, column.data_page_offset)
        if position is not None
    )


def _rows_at_once(schema: pyarrow.Schema, columns: Sequence[str], group: parquet.RowGroupMetaData) -> int:
    """Return how many rows of a row group Arrow reads at a time. Each batch also has the group's shared values."""
    size = group.total_byte_size
    few = size > LARGE_GROUP_BYTES and not tables.has_shared_values(schema.field(name) for name in columns)
    return max(1, min(tables.FEW_ROWS if few else tables.ROWS, tables.ROWS_BYTES * group.num_rows // max(1, size)))
