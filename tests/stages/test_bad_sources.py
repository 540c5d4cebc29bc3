"""Damaged files and malformed records are named, counted or refused, never read silently."""

import bz2
import gzip
import itertools
import json
import subprocess
import sys

import pyarrow as pa
import pytest
from pyarrow import parquet

from stages import hash_documents, tokenize
from stages.lib.sources import storage
from stages.lib.sources.kinds import lines
from stages.lib.sources.kinds.registry import KINDS
from tests.helpers.data_fixtures import entries_of, listed, make, part_of, refused, run, texts, write_jsonl
from tests.helpers.faults import flip_bit
from tests.helpers.manifests import documents_of, filtered_of, held_out
from tools.inspect import __main__ as inspect

TEXTS = texts("a", 40)
LINES = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS).encode()
HALF = LINES.index(b"\n", len(LINES) // 2) + 1
TWICE = LINES[:HALF], LINES[HALF:]


def zstd(content):
    return pa.compress(content, "zstd", asbytes=True)


def lz4(content):
    return pa.compress(content, "lz4", asbytes=True)


def table(columns, form="parquet", **options):
    """A parquet file, or an Arrow file or stream, of some columns or of a table."""
    made = columns if isinstance(columns, pa.Table) else pa.table(columns)
    sink = pa.BufferOutputStream()
    if form == "parquet":
        parquet.write_table(made, sink, **{"row_group_size": 9} | options)
    else:
        with (pa.ipc.new_file if form == "file" else pa.ipc.new_stream)(sink, made.schema) as writer:
            writer.write_table(made, max_chunksize=9)
    return sink.getvalue().to_pybytes()


PACKED = {"gz": gzip.compress, "zst": zstd, "bz2": bz2.compress, "lz4": lz4}
WHOLE = {f"two.jsonl.{ending}": b"".join(map(pack, TWICE)) for ending, pack in PACKED.items()}
WHOLE |= {"one.jsonl.gz": gzip.compress(LINES), "rows.parquet": table({"text": TEXTS})}
WHOLE |= {f"{form}.arrow": table({"text": TEXTS}, form) for form in ("file", "stream")}
# where one compressed stream ends and the next begins, a cut file is a whole one
BORDERS = {f"two.jsonl.{ending}": len(pack(TWICE[0])) for ending, pack in PACKED.items()}


def kind_of(name):
    ending = name.rpartition(".")[2]
    return ending if ending in KINDS else "jsonl"


def written(directory, form, columns):
    """Write a file of some columns; return its kind and path, as a recipe has them."""
    path = directory / ("a.parquet" if form == "parquet" else "a.arrow")
    path.write_bytes(table(columns, form))
    return {"kind": kind_of(path.name), "paths": [str(path)]}


def texts_of(*, kind, paths):
    """The texts of a source of one file."""
    (path,) = paths
    return [document.text for document in entries_of(path, kind)]


def refusal(directory, tokenizer, capsys, **recipe):
    """Return the sentence with which tokenize refuses a source; it must leave nothing."""
    made = listed(directory, "a", {"validation": 0.2} | recipe)
    output = directory / "tokens/00000.json"
    line = refused(capsys, tokenize, list=made, tokenizer=tokenizer, part=0, output=output)
    assert not output.parent.exists() or not list(output.parent.iterdir())
    return line


@pytest.mark.parametrize("name", WHOLE)
def test_a_file_cut_anywhere_is_named(tmp_path, name):
    """At 150 places and each of the last 30 bytes."""
    whole, path = WHOLE[name], tmp_path / name
    recipe = {"kind": kind_of(name), "paths": [str(path)]}
    cuts = {len(whole) * number // 150 for number in range(150)} | set(range(len(whole) - 30, len(whole)))
    border = BORDERS.get(name, 0)
    for cut in sorted((cuts | set(range(border - 9, border + 12))) - {border} - set(range(-9, 0))):
        path.write_bytes(whole[:cut])
        with pytest.raises(storage.UserError, match=f"^{path} cannot be read to its end: "):
            texts_of(**recipe)
    path.write_bytes(whole)
    assert texts_of(**recipe) == TEXTS


@pytest.mark.parametrize("ending", PACKED)
def test_an_empty_stream_anywhere_is_nothing(tmp_path, ending):
    pack, path = PACKED[ending], tmp_path / f"a.jsonl.{ending}"
    empty, (first, second) = pack(b""), map(pack, TWICE)
    path.write_bytes(empty + first + empty + empty + second + empty)
    assert texts_of(kind="jsonl", paths=[str(path)]) == TEXTS


@pytest.mark.parametrize(
    ("ending", "how"),
    [(ending, how) for ending in ("gz", "bz2") for how in ("flipped", "trailing")] + [("zst", "trailing")],
)
def test_a_packed_file_with_other_bytes_is_named_and_leaves_nothing(tmp_path, tokenizer, capsys, ending, how):
    """The writer of zstd adds no checksum: a flipped bit of its stream may go undetected."""
    path, content = tmp_path / f"a.jsonl.{ending}", bytearray(PACKED[ending](LINES))
    if how == "flipped":
        content[len(content) // 2] ^= 0xFF
    path.write_bytes(content + b"more" * (how == "trailing"))
    line = refusal(tmp_path, tokenizer, capsys, kind="jsonl", paths=[str(path)])
    assert line.startswith(f"tokenize: {path} cannot be read to its end: ")


@pytest.mark.parametrize("form", ["file", "stream"])
@pytest.mark.parametrize(
    "column", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())]
)
def test_offsets_that_lead_out_of_an_arrow_file_are_refused_and_crash_nothing(tmp_path, form, column):
    """Arrow believes the offsets that it reads. In a process of its own, which Arrow ended in most such files."""
    script = (
        "import os, sys; from pathlib import Path; from stages.lib.sources import documents, source, spans;"
        "from stages.lib.errors import UserError\n"
        "data = Path(sys.argv[1]).read_bytes(); recipe = source.SourceRecipe(kind='arrow', paths=['*'])\n"
        "refused = 0\n"
        "for at in map(int, sys.argv[3:]):\n"
        "    Path(sys.argv[2]).write_bytes(data[:at] + bytes([data[at] ^ 0x80]) + data[at + 1:])\n"
        "    try: list(documents.read(recipe, spans.whole([sys.argv[2]]), []))\n"
        "    except (UserError, MemoryError): refused += 1\n"
        "print(refused, flush=True)\n"
        "os._exit(0)"  # Arrow's threads have been seen to abort while Python ends
    )
    text = pa.array(TEXTS[:8]).cast(column)
    content = table({"text": text}, form)
    places = []
    for values in (text.indices, text.dictionary) if pa.types.is_dictionary(column) else (text,):
        offsets = values.buffers()[1].to_pybytes()
        begin = content.index(offsets)
        places += range(begin, begin + len(offsets))
    (tmp_path / "a.arrow").write_bytes(content)
    command = [sys.executable, "-c", script, tmp_path / "a.arrow", tmp_path / "flipped.arrow", *map(str, places)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert ended.returncode == 0, ended.stderr[-300:]
    assert int(ended.stdout) > 5


def test_a_flipped_bit_in_a_page_with_a_checksum_is_refused(tmp_path, tokenizer, capsys):
    options, path = {"compression": "none", "use_dictionary": False}, tmp_path / "a.parquet"
    content = table({"text": TEXTS}, write_page_checksum=True, **options)
    path.write_bytes(content)
    flip_bit(path, at=content.index(TEXTS[20].encode()))
    line = refusal(tmp_path, tokenizer, capsys, kind="parquet", paths=[str(path)])
    assert line.startswith(f"tokenize: {path} cannot be read to its end: could not verify page")


def test_a_flipped_bit_in_the_header_of_a_page_loses_no_row(tmp_path, tokenizer, capsys):
    """The checksum is that of what follows the header, which says how many rows that are: a column may end early."""
    content = table({"text": TEXTS}, write_page_checksum=True, use_dictionary=False)
    begin = parquet.ParquetFile(pa.BufferReader(content)).metadata.row_group(1).column(0).data_page_offset
    path, short = tmp_path / "a.parquet", None
    for at, bit in itertools.product(range(begin, begin + 40), range(8)):
        flipped = content[:at] + bytes([content[at] ^ 1 << bit]) + content[at + 1 :]
        path.write_bytes(flipped)
        try:
            assert texts_of(kind="parquet", paths=[str(path)]) == TEXTS
        except storage.UserError as error:
            short = flipped if "row group 1 has" in str(error) else short
    path.write_bytes(short)
    line = refusal(tmp_path, tokenizer, capsys, kind="parquet", paths=[str(path)])
    assert line.startswith(f"tokenize: {path} cannot be read to its end: row group 1 has ")
    assert line.endswith(" rows in place of 9")


@pytest.mark.parametrize(
    ("number", "said"),  # num_rows in the footer, as thrift writes it, of all and of the last row group
    [(b"\x16\xd0\x0f", "have 1000 rows in place of 1001"), (b"\x16\x90\x03", "have 1001 rows in place of 1000")],
)
def test_a_parquet_file_that_says_two_numbers_of_rows_is_refused(tmp_path, tokenizer, capsys, number, said):
    rows = [f"row {number}" for number in range(1000)]
    content = table({"text": rows}, row_group_size=400, use_dictionary=False, store_schema=False)
    at = content.rindex(number) + 1
    path = tmp_path / "a.parquet"
    path.write_bytes(content[:at] + bytes([content[at] ^ 2]) + content[at + 1 :])
    line = refusal(tmp_path, tokenizer, capsys, kind="parquet", paths=[str(path)])
    assert line == f"tokenize: {path} cannot be read to its end: its row groups {said}"


NO_ROWS = {"text": pa.array([], pa.string())}


@pytest.mark.parametrize(
    ("kind", "name", "content", "said"),
    [
        ("jsonl", "a.jsonl", b"", None),
        ("jsonl", "a.jsonl.gz", gzip.compress(b"", mtime=0), None),  # no time of day in the test's name
        ("text", "a.txt", b"", None),
        ("parquet", "a.parquet", b"", "cannot be read to its end: "),
        ("arrow", "a.arrow", b"", "cannot be read to its end: its end is neither that of an Arrow file nor that of an"),
        ("parquet", "a.parquet", table(NO_ROWS), None),
        ("arrow", "a.arrow", table(NO_ROWS, "file"), None),
        ("arrow", "a.arrow", table(NO_ROWS, "stream"), None),
    ],
)
def test_an_empty_file_holds_nothing_or_is_named(tmp_path, tokenizer, capsys, kind, name, content, said):
    (tmp_path / name).write_bytes(content)
    recipe = {"kind": kind, "paths": [str(tmp_path / name)]}
    if said:
        assert refusal(tmp_path, tokenizer, capsys, **recipe).startswith(f"tokenize: {tmp_path / name} {said}")
    else:
        assert documents_of(part_of(tmp_path, tokenizer, **recipe)) == 0


@pytest.mark.parametrize("form", ["parquet", "file", "stream"])
@pytest.mark.parametrize(
    "column",
    [
        pa.large_string(),
        pa.string_view(),
        pa.dictionary(pa.int32(), pa.string()),
        pa.dictionary(pa.uint8(), pa.large_string()),
        pa.binary(),
        pa.large_binary(),
        pa.binary_view(),
        pa.dictionary(pa.uint8(), pa.binary()),
    ],
)
def test_text_is_text_in_every_form_of_a_column(tmp_path, form, column):
    recipe = written(tmp_path, form, {"n": range(40), "text": pa.array(TEXTS).cast(column)})
    assert texts_of(**recipe) == TEXTS


@pytest.mark.parametrize("form", ["parquet", "file"])
@pytest.mark.parametrize("column", [pa.array([1, 2]), pa.array([{"a": "b"}] * 2), pa.array([["x"]] * 2)])
def test_a_column_of_another_type_is_refused(tmp_path, tokenizer, capsys, form, column):
    line = refusal(tmp_path, tokenizer, capsys, **written(tmp_path, form, {"text": column}))
    assert line.endswith("the share of malformed records, 2 of 2 (2 no text in text), got 0.05")


def test_an_arrow_file_without_the_column_among_others_is_named(tmp_path, tokenizer, capsys):
    (tmp_path / "a.arrow").write_bytes(table({"text": TEXTS}, "file"))
    (tmp_path / "b.arrow").write_bytes(table({"body": TEXTS}, "file"))
    line = refusal(tmp_path, tokenizer, capsys, kind="arrow", paths=[str(tmp_path / "*.arrow")])
    assert line == f"tokenize: {tmp_path / 'b.arrow'} must have the column text, got body"


@pytest.mark.parametrize("form", ["parquet", "file"])
def test_a_column_that_stands_twice_is_shown_twice_and_refused_where_it_is_read(tmp_path, tokenizer, capsys, form):
    columns = [pa.array(TEXTS), pa.array(["one"] * 40), pa.array(["two"] * 40)]
    recipe = written(tmp_path, form, pa.Table.from_arrays(columns, names=["text", "page", "page"]))
    assert documents_of(part_of(tmp_path, tokenizer, **recipe)) == len(set(TEXTS))
    capsys.readouterr()
    assert run(inspect, recipe=recipe) == 0
    shown = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("  page ")]
    assert shown == [["page", "string", "one"], ["page", "string", "two"]]
    line = refusal(tmp_path / "twice", tokenizer, capsys, split_field="page", **recipe)
    assert line == f"tokenize: {recipe['paths'][0]} must have the column page once, got 2 of them"


BEYOND = [
    (pa.array([10**7, 0], pa.int32()).cast(pa.date32()), "29349-01-26"),
    (pa.array([2**62, 0], pa.timestamp("us")), "<value out of range: 4611686018427387904>"),
    (pa.array([1, 0], pa.timestamp("us", tz="Foo/Bar")), "1970-01-01 00:00:00.000001Z"),
    (pa.array([2**62, 0], pa.duration("s")), "4611686018427387904"),
]
"""Values that Arrow has and Python has not, beside one of each that it may have; and how they are shown."""


@pytest.mark.parametrize("form", ["parquet", "file"])
@pytest.mark.parametrize(("column", "shown"), BEYOND, ids=["date", "time", "zone", "duration"])
def test_values_that_python_cannot_hold_are_shown_and_no_split_key(tmp_path, tokenizer, capsys, form, column, shown):
    columns = {"text": TEXTS[:2], "day": column, "days": pa.array([[day] for day in column], pa.list_(column.type))}
    recipe = written(tmp_path, form, columns) | {"max_malformed": 1}
    assert documents_of(part_of(tmp_path, tokenizer, **recipe)) == 2
    for field in ("day", "days"):
        part = part_of(tmp_path / field, tokenizer, split_field=field, **recipe)
        assert filtered_of(part) == {f"no text or whole number in {field}": 2}
    capsys.readouterr()
    assert run(inspect, recipe=recipe) == 0
    said = capsys.readouterr().out
    assert len([line for line in said.splitlines() if line.startswith("  day") and shown in line]) == 2


@pytest.mark.parametrize("form", ["parquet", "file"])
def test_one_row_that_is_broken_spoils_no_other(tmp_path, tokenizer, form):
    ids = pa.array([[5, 6], [7, None], [8], None], pa.list_(pa.int32()))
    page = pa.array([b"a", b"b", b"\xff", b"d"]).view(pa.string())
    recipe = written(tmp_path, form, {"ids": ids, "page": page}) | {"token_ids_field": "ids", "split_field": "page"}
    part = part_of(tmp_path, tokenizer, max_malformed=1, **recipe)
    assert filtered_of(part) == {"no token ids in ids": 2, "not UTF-8": 1}
    assert documents_of(part) == 1
    texts = pa.array([*(text.encode() for text in TEXTS[:7]), b"\xff\xfe", TEXTS[7].encode()], pa.binary())
    assert texts_of(**written(tmp_path, form, {"text": texts})) == [*TEXTS[:7], None, TEXTS[7]]


def test_nul_bytes_are_text(tmp_path, tokenizer):
    entries = [{"text": "a\0b"}, {"text": "\0"}, {"text": "\0" * 5000 + "b"}]
    path = write_jsonl(tmp_path / "a.jsonl", entries)
    part = part_of(tmp_path, tokenizer, kind="jsonl", paths=[path], validation=0.9)
    assert documents_of(part) == 3
    assert set() < set(held_out(part)) <= {entry["text"] for entry in entries}
    assert filtered_of(part) == {}


def test_a_bomb_of_blank_lines_is_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(lines, "MAX_BLANK", 50)
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}\n' + "\n" * 50 + '{"text": "b"}\n' + " \n" * 51)
    options = {"list": listed(tmp_path, "a", {"kind": "jsonl", "paths": [str(path)]}), "part": 0, "parts": 1}
    line = refused(capsys, hash_documents, **options, output=tmp_path / "hashes/00000.json")
    assert line == f"hash_documents: {path} must have at most 50 blank lines in a row, found more"
    monkeypatch.setattr(lines, "MAX_BLANK", 51)
    make(hash_documents, **options, output=tmp_path / "hashes/00000.json")
