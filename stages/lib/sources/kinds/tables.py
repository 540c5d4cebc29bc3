"""The kinds `parquet` and `arrow`: rows as mappings, in memory that does not grow with the files.

A malformed row is its reason, a str. A damaged file is a UserError that names it.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

from stages.lib.errors import UserError
from stages.lib.sources import storage
from stages.lib.sources.kinds.kind import FIELDS_OF_TABLE, JSON_LINES_ENDINGS, SourceFields, SourceKind
from stages.lib.sources.spans import Span

if TYPE_CHECKING:
    import pyarrow
    from pyarrow import parquet

Row = dict[str, Any] | str

ROWS, FEW_ROWS = 1024, 64  # read at once: few if long rows may stand among short ones
ROWS_BYTES = 16 << 20  # of rows that become Python objects at once; larger batches are converted row by row


@contextlib.contextmanager
def arrow_errors(name: str) -> Iterator[None]:
    """Raise Arrow's errors on a file as a UserError that names the file."""
    import pyarrow

    try:
        yield
    except (OSError, UnicodeDecodeError, pyarrow.ArrowException) as error:
        raise UserError(f"{name} cannot be read to its end: {str(error).partition(chr(10))[0]}") from None


def fields_of_document(recipe: SourceFields) -> list[str | None]:
    """Return the columns of a document's text or ids, split key and id; None for a field that is not set."""
    return [recipe.token_ids_field or recipe.text_field, recipe.split_field, recipe.id_field]


def columns_to_read(fields: Sequence[str | None], schema: pyarrow.Schema, file: str) -> list[str]:
    """Return the columns that are set; `doc.text` is the field text of the struct doc.

    Raises UserError unless `schema`, that of `file`, has each once.
    """
    columns, names = list(dict.fromkeys(column for column in fields if column is not None)), schema.names
    for column in columns:
        if not has_column(schema, column):
            raise UserError(f"{file} must have the column {column}, got {', '.join(_names_of(schema))}")
        if names.count(column) > 1:
            raise UserError(f"{file} must have the column {column} once, got {names.count(column)} of them")
    return columns


def has_column(schema: pyarrow.Schema, column: str) -> bool:
    """Return True if a table has a column, or a field of a struct."""
    return column in schema.names or column in _names_of(schema)


def _names_of(fields: Iterable[pyarrow.Field], above: str = "") -> list[str]:
    """Return the dotted names of columns, with those of the fields of structs behind each."""
    import pyarrow

    names = []
    for field in fields:
        names.append(f"{above}{field.name}")
        if pyarrow.types.is_struct(field.type):
            names += _names_of(list(field.type), f"{above}{field.name}.")
    return names


def outer_columns(columns: Sequence[str], schema: pyarrow.Schema) -> list[str]:
    """Return the columns of a table that hold some columns, which may be fields of structs."""
    return list(dict.fromkeys(next(_outer(column, schema)) for column in columns))


def _outer(column: str, schema: pyarrow.Schema) -> Iterator[str]:
    parts = column.split(".")
    yield from (name for end in range(len(parts), 0, -1) if (name := ".".join(parts[:end])) in schema.names)


def flattened(batch: pyarrow.RecordBatch, columns: Sequence[str]) -> pyarrow.RecordBatch:
    """Return a batch with these columns, in place of the structs that hold them."""
    import pyarrow
    from pyarrow import compute

    if batch.schema.names == [*columns]:
        return batch
    found = []
    for column in columns:
        name = next(_outer(column, batch.schema))
        array, rest = batch.column(name), column[len(name) + 1 :]
        while rest:
            fields = [field.name for field in array.type]
            name = next(field for field in fields if rest == field or rest.startswith(f"{field}."))
            array, rest = compute.struct_field(array, [name]), rest[len(name) + 1 :]
        found.append(array)
    return pyarrow.RecordBatch.from_arrays(found, names=[*columns])


def has_shared_values(fields: Iterable[pyarrow.Field]) -> bool:
    """Return True if a column is dictionary-encoded."""
    import pyarrow

    return any(pyarrow.types.is_dictionary(field.type) for field in fields)


def first_row(batches: Iterable[pyarrow.RecordBatch]) -> list[Any] | None:
    """Return the values of the first row; None without rows, or if a value is not UTF-8."""
    for batch in batches:
        if len(batch):
            # columns get numbers as names, since several may have one name
            numbered = batch.slice(0, 1).rename_columns([str(number) for number in range(batch.num_columns)])
            row = next(iter(_rows_of(numbered, of_bytes=False)), None)
            return list(row.values()) if isinstance(row, dict) else None
    return None


def numbered_rows(name: str, number: int, batches: Iterable[pyarrow.RecordBatch]) -> Iterator[tuple[str, Row]]:
    """Yield (id, row) of all rows; the first of them has the number `number` in the file `name`."""
    for batch in batches:
        # those with shared values are few at a time: the size of a batch does not tell their own
        at_once = FEW_ROWS if has_shared_values(batch.schema) else ROWS
        for begin in range(0, batch.num_rows, at_once):
            for row in _rows_of(batch.slice(begin, at_once)):
                yield f"{name}:{number}", row
                number += 1


def _rows_of(batch: pyarrow.RecordBatch, of_bytes: bool = True) -> Iterable[Row]:
    """Return the rows of a batch; token ids are arrays, and bytes are read as UTF-8 if `of_bytes` is true."""
    names, columns = batch.schema.names, [_decoded(column, of_bytes) for column in batch.columns]
    if sum(column.nbytes for column in columns) <= ROWS_BYTES:
        with contextlib.suppress(UnicodeDecodeError):  # Arrow does not check UTF-8 when it reads
            values = [_values(column) for column in columns]
            return [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]
    return (_row(names, columns, at) for at in range(len(batch)))


def _row(names: Sequence[str], columns: Sequence[pyarrow.Array], at: int) -> Row:
    try:
        return {name: _values(column.slice(at, 1))[0] for name, column in zip(names, columns, strict=True)}
    except UnicodeDecodeError:
        return "not UTF-8"


def _decoded(column: pyarrow.Array, of_bytes: bool) -> pyarrow.Array:
    """Return the column; if it is dictionary-encoded text, with a text per row; if it is of bytes, as text."""
    import pyarrow

    texts = _texts_of_bytes()
    if pyarrow.types.is_dictionary(column.type) and column.type.value_type in (*texts, *texts.values()):
        column = column.dictionary_decode()
    if of_bytes and pyarrow.types.is_fixed_size_binary(column.type):
        column = column.cast(pyarrow.binary())
    return column.view(texts[column.type]) if of_bytes and column.type in texts else column


@functools.cache
def _texts_of_bytes() -> dict[pyarrow.DataType, pyarrow.DataType]:
    """Return Arrow's types of bytes, each with the type of text that has the same buffers."""
    import pyarrow

    return {
        pyarrow.binary(): pyarrow.string(),
        pyarrow.large_binary(): pyarrow.large_string(),
        pyarrow.binary_view(): pyarrow.string_view(),
    }


def _values(column: pyarrow.Array) -> list[Any]:
    """Return the values of a column; a value that Python cannot hold stays an Arrow array."""
    import pyarrow

    type_ = column.type
    is_list = pyarrow.types.is_list(type_) or pyarrow.types.is_large_list(type_)
    if not (is_list and pyarrow.types.is_integer(type_.value_type)):
        try:
            return column.to_pylist()
        except UnicodeDecodeError:
            raise
        except (ArithmeticError, LookupError, ValueError):  # a day in the year 30000, an unknown time zone
            alone = len(column) == 1
            return [column] if alone else [_values(column.slice(at, 1))[0] for at in range(len(column))]
    valid, offsets = column.is_valid().to_pylist(), column.offsets.to_numpy()
    first = int(offsets[0])
    values = column.values.slice(first, int(offsets[-1]) - first)  # `values` itself is that of the whole batch
    if values.null_count:  # a list with a null is not token ids
        valid = [row and not column[at].values.null_count for at, row in enumerate(valid)]
        values = values.fill_null(0)
    values, offsets = values.to_numpy(), offsets - first
    return [values[offsets[at] : offsets[at + 1]] if valid[at] else None for at in range(len(column))]


END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"


class Arrow(SourceKind):
    """A document is a row. A record batch is held in memory as a whole."""

    name = "arrow"
    fields = FIELDS_OF_TABLE
    endings = (".arrow", ".feather", ".ipc")
    owns_endings = True
    has_columns = True

    def records(self, recipe: SourceFields, span: Span) -> Iterator[tuple[str, Row]]:
        """Yield (id, row), a row as a mapping of the columns that the recipe names."""
        with arrow_errors(span.name), storage.open_binary(span.name) as raw:
            reader, batches = _open(raw)
            columns = columns_to_read(fields_of_document(recipe), reader.schema, span.name)
            outer = outer_columns(columns, reader.schema)
            found = (flattened(_validated(batch.select(outer)), columns) for batch in batches)
            yield from numbered_rows(span.name, 0, found)

    def schema(self, name: str) -> tuple[pyarrow.Schema, list[Any] | None]:
        """Return (Arrow schema, values of the first row or None without one) of a file."""
        with arrow_errors(name), storage.open_binary(name) as raw:
            reader, batches = _open(raw)
            return reader.schema, first_row(batches)


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
    bytes_of = {text: of_bytes for of_bytes, text in _texts_of_bytes().items()}
    return column.view(bytes_of[column.type]) if column.type in bytes_of else column


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

    def records(self, recipe: SourceFields, span: Span) -> Iterator[tuple[str, Row]]:
        """Yield (id, row), a row as a mapping of the columns that the recipe names."""
        return self.rows(fields_of_document(recipe), span)

    def rows(self, fields: Sequence[str | None], span: Span) -> Iterator[tuple[str, Row]]:
        """Yield (id, row) of a span; `fields`: the columns, None for one that is not read."""
        from pyarrow import parquet

        options = {"buffer_size": BUFFER_BYTES, "page_checksum_verification": True}  # if the file has checksums
        with (
            arrow_errors(span.name),
            storage.open_binary(span.name) as raw,
            parquet.ParquetFile(raw, **options) as file,
        ):
            columns = columns_to_read(fields, file.schema_arrow, span.name)
            outer = outer_columns(columns, file.schema_arrow)
            groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
            _check_rows("its row groups have", sum(group.num_rows for group in groups), file.metadata.num_rows)
            before = 0
            for number, group in enumerate(groups):
                if _position_of(group) in span:
                    rows = _rows_at_once(file.schema_arrow, outer, group)
                    batches = file.iter_batches(rows, row_groups=[number], columns=columns)
                    found = (flattened(batch, columns) for batch in _complete(batches, number, group))
                    yield from numbered_rows(span.name, before, found)
                before += group.num_rows

    def schema(self, name: str) -> tuple[pyarrow.Schema, list[Any] | None]:
        """Return (Arrow schema, values of the first row or None without one) of a file."""
        from pyarrow import parquet

        with (
            arrow_errors(name),
            storage.open_binary(name) as raw,
            parquet.ParquetFile(raw, buffer_size=BUFFER_BYTES) as file,
        ):
            return file.schema_arrow, first_row(file.iter_batches(1))


PARQUET = Parquet()


class LinesOrRows(SourceKind):
    """A kind whose files are JSON lines or parquet, by their endings."""

    endings: tuple[str, ...] = JSON_LINES_ENDINGS + PARQUET.endings
    has_json_lines = True

    @staticmethod
    def is_table(name: str) -> bool:
        """Return True for a parquet file."""
        return storage.without_query(name).endswith(PARQUET.endings)

    def schema(self, name: str) -> tuple[pyarrow.Schema, list[Any] | None]:
        """Return (Arrow schema, values of the first row or None without one) of a parquet file."""
        return PARQUET.schema(name)


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

    with arrow_errors(name), storage.open_binary(name) as raw, parquet.ParquetFile(raw) as file:
        return [_position_of(file.metadata.row_group(number)) for number in range(file.num_row_groups)]


def _position_of(group: parquet.RowGroupMetaData) -> int:
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
    few = size > LARGE_GROUP_BYTES and not has_shared_values(schema.field(name) for name in columns)
    return max(1, min(FEW_ROWS if few else ROWS, ROWS_BYTES * group.num_rows // max(1, size)))
