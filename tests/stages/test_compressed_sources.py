"""Packed files and parquet: the same documents as from plain files, or a sentence that names the file."""

import bz2
import gzip
import json

import pyarrow as pa
import pytest
from pyarrow import parquet

from stages import tokenize
from tests.helpers.data_fixtures import listed, refused, texts, tokenized, trained, write_jsonl

ENTRIES = [{"text": text, "url": f"u{number % 17}"} for number, text in enumerate(texts("a", 120))]
RECIPE = {"validation": 0.15, "split_field": "url"}


def zstd(content):
    return pa.compress(content, "zstd", asbytes=True)


def lz4(content):
    return pa.compress(content, "lz4", asbytes=True)


PACKED = {".gz": gzip.compress, ".zst": zstd, ".bz2": bz2.compress, ".lz4": lz4}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """(directory, tokenizer, JSON lines as bytes) of the same documents in a plain file, tokenized there."""
    directory = tmp_path_factory.mktemp("plain")
    path = write_jsonl(directory / "texts/a.jsonl", ENTRIES)
    source = listed(directory, "a", {"kind": "jsonl", "paths": [path], **RECIPE})
    tokenizer = trained(directory, [source], vocab_size=320, sample={"a": 1}, sample_mb=0.1)
    tokenized(directory, "a", source, tokenizer)
    return directory, tokenizer, (directory / "texts/a.jsonl").read_bytes()


def shards(directory):
    """The bytes of the shards of source a."""
    return [path.read_bytes() for path in sorted(directory.glob("tokens/main/a/00000/*.arrow"))]


def make(directory, tokenizer, name, content, kind="jsonl", **recipe):
    """Tokenize a file of such content."""
    (directory / name).write_bytes(content)
    source = listed(directory, "a", {"kind": kind, "paths": [str(directory / name)], **RECIPE, **recipe})
    return tokenized(directory, "a", source, tokenizer)


@pytest.mark.parametrize("ending", PACKED)
def test_compressed_lines_make_the_same_shards(plain, tmp_path, ending):
    directory, tokenizer, content = plain
    make(tmp_path, tokenizer, f"a.jsonl{ending}", PACKED[ending](content))
    assert shards(tmp_path) == shards(directory)


@pytest.mark.parametrize("ending", PACKED)
def test_an_empty_stream_anywhere_is_nothing(plain, tmp_path, ending):
    directory, tokenizer, content = plain
    pack, middle = PACKED[ending], len(content) // 2
    empty = pack(b"")
    streams = empty + pack(content[:middle]) + empty + empty + pack(content[middle:]) + empty
    make(tmp_path, tokenizer, f"a.jsonl{ending}", streams)
    assert shards(tmp_path) == shards(directory)


def written(entries, **options):
    """A parquet file of some entries, as bytes."""
    sink = pa.BufferOutputStream()
    parquet.write_table(pa.Table.from_pylist(entries), sink, **options)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("options", [{}, {"row_group_size": 7, "compression": "zstd"}])
def test_rows_of_parquet_make_the_same_shards(plain, tmp_path, options):
    directory, tokenizer, _ = plain
    make(tmp_path, tokenizer, "a.parquet", written(ENTRIES, **options), kind="parquet")
    assert shards(tmp_path) == shards(directory)


def test_rows_that_are_no_documents_are_counted_by_reason(plain, tmp_path):
    table = pa.table(
        {
            "text": pa.array([b"good text", b"\xff\xfe", None, b"  ", b"no url"]).view(pa.string()),
            "url": ["a", "b", "c", "d", None],
        }
    )
    sink = pa.BufferOutputStream()
    parquet.write_table(table, sink)
    (part,) = make(tmp_path, plain[1], "a.parquet", sink.getvalue().to_pybytes(), kind="parquet", max_malformed=1)
    dropped = json.loads(part.read_text())["record"]["dropped"]
    assert dropped == {"empty": 1, "no text in text": 1, "no text or whole number in url": 1, "not UTF-8": 1}


def damaged(content, how):
    """Some bytes, spoilt."""
    if how == "cut":
        return content[: len(content) * 2 // 3]
    if how == "trailing":
        return content + b"more"
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 0xFF]) + content[middle + 1 :]


@pytest.mark.parametrize(
    ("name", "how"),
    [("a.jsonl.gz", how) for how in ("cut", "flipped", "trailing")]
    + [("a.jsonl.zst", how) for how in ("cut", "trailing")]  # that zstd writer adds no checksum
    + [("a.jsonl.bz2", how) for how in ("cut", "flipped", "trailing")]
    + [("a.parquet", "cut")],
)
def test_damaged_file_is_named_and_leaves_nothing(plain, tmp_path, capsys, name, how):
    _, tokenizer, content = plain
    kind = "parquet" if name.endswith(".parquet") else "jsonl"
    content = written(ENTRIES) if kind == "parquet" else PACKED[name.removeprefix("a.jsonl")](content)
    (tmp_path / name).write_bytes(damaged(content, how))
    source = listed(tmp_path, "a", {"kind": kind, "paths": [str(tmp_path / name)], **RECIPE})
    output = tmp_path / "tokens/main/a/00000.json"
    line = refused(capsys, tokenize, list=source, tokenizer=tokenizer, part=0, recipe={}, output=output)
    assert line.startswith(f"tokenize: {tmp_path / name} cannot be read to its end: ")
    assert not (tmp_path / "tokens/main/a/00000").exists()
