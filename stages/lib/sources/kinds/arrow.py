"""The kind `arrow`: the rows of Arrow IPC files and streams."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

from stages.lib.sources import storage
from stages.lib.sources.kinds import tables
from stages.lib.sources.kinds.kind import FIELDS_OF_TABLE, SourceKind

if TYPE_CHECKING:
    import pyarrow

    from stages.lib.sources.kinds.kind import SourceFields
    from stages.lib.sources.spans import Span

END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"


class Arrow(SourceKind):
    """A document is a row. A record batch is held in memory as a whole."""

    name = "arrow"
    fields = FIELDS_OF_TABLE
    endings = (".arrow", ".feather", ".ipc")
    owns_endings = True
    has_columns = True

    def records(self, recipe: SourceFields, span: Span) -> Iterator[tuple[str, tables.Row]]:
        """Yield (id, row), a row as a mapping of the columns that the recipe names."""
        with tables.arrow_errors(span.name), storage.open_binary(span.name) as raw:
            reader, batches = _open(raw)
            columns = tables.columns_to_read(tables.fields_of_document(recipe), reader.schema, span.name)
            outer = tables.outer_columns(columns, reader.schema)
            found = (tables.flattened(_validated(batch.select(outer)), columns) for batch in batches)
            slices = (rows for batch in found for rows in tables.slices_of(batch))
            yield from tables.numbered_rows(span.name, 0, slices)

    def schema(self, name: str) -> tuple[pyarrow.Schema, list[Any] | None]:
        """Return (Arrow schema, values of the first row or None without one) of a file."""
        with tables.arrow_errors(name), storage.open_binary(name) as raw:
            reader, batches = _open(raw)
            slices = (rows for batch in batches for rows in tables.slices_of(batch))
            return reader.schema, tables.first_row(slices)


def _open(
    raw: BinaryIO,
) -> tuple[pyarrow.ipc.RecordBatchFileReader | pyarrow.ipc.RecordBatchStreamReader, Iterable[pyarrow.RecordBatch]]:
    """Return (reader, batches) of an open file in either of Arrow's two formats."""
    import pyarrow

    try:
        reader = pyarrow.ipc.open_file(raw)
    except pyarrow.ArrowInvalid:
        raw.seek(max(0, raw.seek(0, 2) - len(END_OF_STREAM)))
        if raw.read() != END_OF_STREAM:  # a stream that is cut between two batches reads as a whole one
            raise OSError("its end is neither that of an Arrow file nor that of an Arrow stream") from None
        raw.seek(0)
        reader = pyarrow.ipc.open_stream(raw)
        return reader, reader
    return reader, (reader.get_batch(number) for number in range(reader.num_record_batches))


def _validated(batch: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
    """Return the batch if all offsets lie in its buffers: Arrow does not check what it reads, and would crash."""
    import pyarrow

    for column in batch.columns:
        column.validate()
        if pyarrow.types.is_dictionary(column.type):
            values = _as_bytes(column.dictionary)
            values.validate(full=True)
            pyarrow.DictionaryArray.from_arrays(column.indices, values)  # validates the indices
        else:
            _as_bytes(column).validate(full=True)
    return batch


def _as_bytes(column: pyarrow.Array) -> pyarrow.Array:
    """Return text as bytes, so that validation does not check UTF-8: that is checked per row."""
    import pyarrow

    types = {
        pyarrow.string(): pyarrow.binary(),
        pyarrow.large_string(): pyarrow.large_binary(),
        pyarrow.string_view(): pyarrow.binary_view(),
    }
    return column.view(types[column.type]) if column.type in types else column
