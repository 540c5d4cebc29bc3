"""Tables: the rows of parquet and Arrow files, read as streams of mappings, in memory that does not grow with them.

A row that is a text says why it is none. A damaged file is a UserError that names it.
"""

import contextlib

from stages.lib.errors import UserError
from stages.lib.sources import storage

ROWS, FEW_ROWS = 1024, 64  # of a table, at once: few where long ones may stand together among short ones
GROUP_BYTES = 64 << 20  # of rows, of which any may be read at once
ROWS_BYTES = 16 << 20  # of rows, made Python's at once: those that have more are made one by one
END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"


def parquet_rows(recipe, span):
    """The rows of a parquet file, as mappings of the columns that are asked for."""
    from pyarrow import parquet

    options = {"buffer_size": 1 << 20, "page_checksum_verification": True}  # where the file has checksums
    with _whole(span.name), storage.opened(span.name) as raw, parquet.ParquetFile(raw, **options) as file:
        wanted = _columns(recipe, file.schema_arrow.names, span.name)
        groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
        _check_rows("its row groups have", sum(group.num_rows for group in groups), file.metadata.num_rows)
        before = 0
        for number, group in enumerate(groups):
            if _begin_of(group) in span:
                rows = _rows_to_read(file.schema_arrow, wanted, group)
                batches = file.iter_batches(rows, row_groups=[number], columns=wanted)
                pieces = (piece for batch in _complete(batches, number, group) for piece in _cut(batch))
                yield from _numbered(span.name, before, pieces)
            before += group.num_rows


def _complete(batches, number, group):
    """The batches of a row group: a damaged header of a page ends its column early, and Arrow says nothing of it."""
    found = 0
    for batch in batches:
        found += batch.num_rows
        yield batch
    _check_rows(f"row group {number} has", found, group.num_rows)


def _check_rows(what, found, said):
    if found != said:
        raise OSError(f"{what} {found} rows in place of {said}")


def arrow_rows(recipe, span):
    """The rows of an Arrow IPC file or stream, as mappings of the columns that are asked for."""
    with _whole(span.name), storage.opened(span.name) as raw:
        reader, batches = _arrow(raw)
        wanted = _columns(recipe, reader.schema.names, span.name)
        yield from _numbered(span.name, 0, (piece for batch in batches for piece in _cut(_sound(batch.select(wanted)))))


def group_begins(name):
    """The positions of the first bytes of a parquet file's row groups."""
    from pyarrow import parquet

    with _whole(name), storage.opened(name) as raw, parquet.ParquetFile(raw) as file:
        return [_begin_of(file.metadata.row_group(number)) for number in range(file.num_row_groups)]


def schema(recipe, name):
    """(Arrow schema, the values of the first row or None where there is none to show) of a table's file."""
    from pyarrow import parquet

    with _whole(name), storage.opened(name) as raw:
        if recipe.kind == "arrow":
            reader, batches = _arrow(raw)
            batches = (piece for batch in batches for piece in _cut(batch))
            return reader.schema, next((_first_row(batch) for batch in batches if len(batch)), None)
        with parquet.ParquetFile(raw, buffer_size=1 << 20) as file:
            return file.schema_arrow, next((_first_row(batch) for batch in file.iter_batches(1) if len(batch)), None)


def _first_row(batch):
    numbered = batch.slice(0, 1).rename_columns([str(number) for number in range(batch.num_columns)])
    row = next(iter(_rows_of(numbered)), None)  # by numbers: of the columns, several may have one name
    return list(row.values()) if isinstance(row, dict) else None


@contextlib.contextmanager
def _whole(name):
    """Inside, what Arrow cannot read is a mistake of the user's that names the file."""
    import pyarrow

    try:
        yield
    except (OSError, UnicodeDecodeError, pyarrow.ArrowException) as error:
        raise UserError(f"{name} cannot be read to its end: {str(error).partition(chr(10))[0]}") from None


def _begin_of(group):
    """The position of a row group's first byte."""
    columns = (group.column(number) for number in range(group.num_columns))
    return min(
        position
        for column in columns
        for position in (column.dictionary_page_offset, column.data_page_offset)
        if position is not None
    )


def _columns(recipe, names, file):
    wanted = [recipe.token_ids_field or recipe.text_field, recipe.split_field, recipe.id_field]
    wanted = list(dict.fromkeys(column for column in wanted if column is not None))
    for column in wanted:
        if column not in names:
            raise UserError(f"{file} must have the column {column}, and has {', '.join(names)}")
        if names.count(column) > 1:
            raise UserError(f"{file} must have the column {column} once, and has it {names.count(column)} times")
    return wanted


def _arrow(raw):
    """(reader, batches) of an open file, of whichever of Arrow's two forms it is."""
    import pyarrow

    try:
        reader = pyarrow.ipc.open_file(raw)
    except pyarrow.ArrowInvalid:
        raw.seek(max(0, raw.seek(0, 2) - len(END_OF_STREAM)))
        if raw.read() != END_OF_STREAM:  # a stream that is cut between two batches looks whole
            raise OSError("it ends neither like an Arrow file nor like an Arrow stream") from None
        raw.seek(0)
        reader = pyarrow.ipc.open_stream(raw)
        return reader, reader
    return reader, (reader.get_batch(number) for number in range(reader.num_record_batches))


def _sound(batch):
    """The batch, of which no offset leads out of its buffers: Arrow believes what it reads, and would crash."""
    import pyarrow

    for column in batch.columns:
        column.validate()
        if pyarrow.types.is_dictionary(column.type):
            values = _as_bytes(column.dictionary)
            values.validate(full=True)
            pyarrow.DictionaryArray.from_arrays(column.indices, values)  # looks at the indices
        else:
            _as_bytes(column).validate(full=True)
    return batch


def _as_bytes(column):
    """Text as bytes, of which nobody asks whether they are UTF-8: that is asked of each row."""
    import pyarrow

    kinds = {
        pyarrow.string(): pyarrow.binary(),
        pyarrow.large_string(): pyarrow.large_binary(),
        pyarrow.string_view(): pyarrow.binary_view(),
    }
    return column.view(kinds[column.type]) if column.type in kinds else column


def _rows_to_read(schema, wanted, group):
    """How many rows of a row group Arrow is asked for at a time. With each come the shared values of all the group."""
    size = group.total_byte_size
    few = size > GROUP_BYTES and not _has_shared_values(schema.field(name) for name in wanted)
    return max(1, min(FEW_ROWS if few else ROWS, ROWS_BYTES * group.num_rows // max(1, size)))


def _cut(batch):
    rows = FEW_ROWS if _has_shared_values(batch.schema) else ROWS  # their size says nothing of what they become
    for begin in range(0, batch.num_rows, rows):
        yield batch.slice(begin, rows)


def _has_shared_values(fields):
    import pyarrow

    return any(pyarrow.types.is_dictionary(field.type) for field in fields)


def _numbered(name, number, batches):
    for batch in batches:
        for row in _rows_of(batch):
            yield f"{name}:{number}", row
            number += 1


def _rows_of(batch):
    """The rows of a batch as mappings; token ids as arrays."""
    names, columns = batch.schema.names, [_decoded(column) for column in batch.columns]
    if sum(column.nbytes for column in columns) <= ROWS_BYTES:
        with contextlib.suppress(UnicodeDecodeError):  # Arrow does not look when it reads
            values = [_values(column) for column in columns]
            return [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]
    return (_row(names, columns, at) for at in range(len(batch)))


def _row(names, columns, at):
    try:
        return {name: _values(column.slice(at, 1))[0] for name, column in zip(names, columns, strict=True)}
    except UnicodeDecodeError:
        return "not UTF-8"


def _decoded(column):
    """The column; where its rows share texts, one in which each has its own."""
    import pyarrow

    types = pyarrow.types
    shared = types.is_dictionary(column.type)
    text = shared and (types.is_string(column.type.value_type) or types.is_large_string(column.type.value_type))
    return column.dictionary_decode() if text else column


def _values(column):
    """The values of a column; one that Python cannot hold stays an array of Arrow's."""
    import pyarrow

    kind = column.type
    is_list = pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind)
    if not (is_list and pyarrow.types.is_integer(kind.value_type)):
        try:
            return column.to_pylist()
        except UnicodeDecodeError:
            raise
        except (ArithmeticError, LookupError, ValueError):  # a day in the year 30000, a time zone that is none
            alone = len(column) == 1
            return [column] if alone else [_values(column.slice(at, 1))[0] for at in range(len(column))]
    there, offsets = column.is_valid().to_pylist(), column.offsets.to_numpy()
    first = int(offsets[0])
    values = column.values.slice(first, int(offsets[-1]) - first)  # `values` itself is that of the whole batch
    if values.null_count:  # ids in which one is missing are none
        there = [row and not column[at].values.null_count for at, row in enumerate(there)]
        values = values.fill_null(0)
    values, offsets = values.to_numpy(), offsets - first
    return [values[offsets[at] : offsets[at + 1]] if there[at] else None for at in range(len(column))]
