"""Large files in parts: whatever the cuts, every record is in one part, once; and memory stays bounded."""

import gzip
import itertools
import json
import re
import subprocess
import sys
import time

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from stages.lib.sources import documents, duplicates, reading, source, spans
from stages.lib.sources.entries import Malformed
from stages.lib.sources.kinds import lines
from stages.lib.sources.source import SourceRecipe
from tests.helpers.data_fixtures import entries_of, lines_listed, listed, texts, tokenized, trained, write_jsonl

CUT_ABOVE = 64  # bytes, in place of 16 MiB


@pytest.fixture
def small_files_are_large(monkeypatch):
    """Treat files from 64 bytes on as those of more than 16 MiB."""
    monkeypatch.setattr(spans, "WHOLE_BYTES", CUT_ABOVE)
    monkeypatch.setattr(lines, "SEGMENT_BYTES", CUT_ABOVE)


def documents_of_parts(kind, paths, parts):
    """The documents of each part of a source."""
    recipe = SourceRecipe(kind=kind, paths=["*"])
    files = [{"name": str(path), "bytes": path.stat().st_size} for path in paths]
    return [
        list(documents.read(recipe, source.spans_of_part(recipe, files, part, parts), [str(path) for path in paths]))
        for part in range(parts)
    ]


LINES = st.lists(st.lists(st.text(max_size=30), max_size=12), min_size=1, max_size=4)


@given(files=LINES, parts=st.integers(1, 9))
@settings(deadline=None, max_examples=60)
def test_each_line_is_in_one_part(files, parts, tmp_path_factory):
    directory = tmp_path_factory.mktemp("lines")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spans, "WHOLE_BYTES", CUT_ABOVE)
        paths = []
        for number, lines in enumerate(files):
            path = directory / f"{number}.jsonl"
            path.write_text("\n".join(json.dumps({"text": text}) for text in lines))  # the last line may have no end
            paths.append(path)
        made = documents_of_parts("jsonl", paths, parts)
    found = [document.text for part in made for document in part]
    assert found == [text for lines in files for text in lines]


@pytest.mark.parametrize("parts", [1, 2, 3, 8, 50])
def test_each_row_group_is_in_one_part(tmp_path, small_files_are_large, parts):
    rows = [{"text": text} for text in texts("a", 70)]
    for name, chosen in (("0", rows[:43]), ("1", rows[43:])):
        parquet.write_table(pa.Table.from_pylist(chosen), tmp_path / f"{name}.parquet", row_group_size=6)
    made = documents_of_parts("parquet", sorted(tmp_path.glob("*.parquet")), parts)
    assert [document.text for part in made for document in part] == [row["text"] for row in rows]
    assert len({document.id for part in made for document in part}) == 70
    assert sum(bool(part) for part in made) >= min(parts, 6)


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_a_large_text_is_cut_at_the_same_line_ends_by_any_number_of_parts(tmp_path, small_files_are_large, parts):
    text = "".join(f"line {number} of some text\n" for number in range(40)) + "the last has no end"
    (tmp_path / "a.txt").write_text(text)
    (tmp_path / "b.txt").write_text("a small one\n")
    made = documents_of_parts("text", sorted(tmp_path.glob("*.txt")), parts)
    found = [document for part in made for document in part]
    assert "".join(document.text for document in found) == text + "a small one\n"
    assert all(document.text.endswith("\n") for document in found[:-2])
    assert max(len(document.text) for document in found) < 2 * CUT_ABOVE
    assert [document.id for document in found[:2]] == [f"{tmp_path}/a.txt#0", f"{tmp_path}/a.txt#1"]


BYTES = st.lists(st.sampled_from([b"\n", b"a", b"bc\n", b"x" * 60, b"x" * 99 + b"\n", b"x" * 100 + b"\n", b"x" * 200]))


@given(pieces=BYTES, parts=st.integers(1, 4), ending=st.sampled_from(["", ".gz"]))
@settings(deadline=None, max_examples=100)
def test_a_segment_holds_the_lines_that_begin_in_it_but_those_that_are_too_long(
    pieces, parts, ending, tmp_path_factory
):
    path = tmp_path_factory.mktemp("text") / f"a.txt{ending}"
    data, expected, position, malformed = b"".join(pieces), {}, 0, 0
    path.write_bytes(gzip.compress(data) if ending else data)
    for line in data.splitlines(keepends=True):
        if len(line) <= 100 or (len(line) == 101 and line.endswith(b"\n")):
            expected.setdefault(position // CUT_ABOVE, []).append(line)
        else:
            malformed += 1
        position += len(line)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spans, "WHOLE_BYTES", CUT_ABOVE)
        patch.setattr(lines, "SEGMENT_BYTES", CUT_ABOVE)
        patch.setattr(reading, "LINE_BYTES", 100)
        found = [entry for part in documents_of_parts("text", [path], parts) for entry in part]
    if len(data) > CUT_ABOVE:
        assert sum(isinstance(entry, Malformed) for entry in found) == malformed
        made = {entry.id: entry.text for entry in found if not isinstance(entry, Malformed)}
        assert made == {f"{path}#{number}": b"".join(held).decode() for number, held in expected.items()}
    else:
        assert [entry.text for entry in found] == [data.decode()]


def test_empty_lines_cost_as_much_as_other_bytes(tmp_path):
    """Read line by line, 20 MB of line ends took 14 s and 300 MB."""
    path = tmp_path / "a.txt"
    path.write_bytes(b"\n" * 20_000_000)
    begin = time.process_time()
    found = entries_of(path, "text")
    assert time.process_time() - begin < 2
    assert [len(document.text) for document in found] == [16 << 20, 20_000_000 - (16 << 20)]


def test_parts_of_one_large_file_hold_its_documents_and_name_their_bytes(tmp_path, small_files_are_large):
    made = lines_listed(tmp_path, texts("a", 60), validation=0.1)
    tokenizer = trained(tmp_path, [made], vocab_size=320, sample={"a": 1})
    parts = [json.loads(part.read_text())["identity"] for part in tokenized(tmp_path, "a", made, tokenizer, parts=4)]
    assert sum(part[side]["documents"] for part in parts for side in ("train", "validation")) == 60
    inputs = [entry for part in parts for entry in part["inputs"]]
    assert [entry["name"] for entry in inputs] == [str(tmp_path / "a.jsonl")] * 4
    assert sum(entry["bytes"] for entry in inputs) == (tmp_path / "a.jsonl").stat().st_size  # each byte hashed once
    assert inputs[0]["first"] == 0
    assert all(first["end"] == second["first"] for first, second in itertools.pairwise(inputs))


def test_a_line_that_is_too_long_is_malformed(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "LINE_BYTES", 100)
    monkeypatch.setattr(reading, "BUFFER_BYTES", 16)
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": "one"}, {"text": "x" * 500}, {"text": "two"}])
    found = entries_of(path, "jsonl")
    assert [getattr(entry, "text", None) for entry in found] == ["one", None, "two"]
    assert found[1] == Malformed(f"{path}:2", "a line longer than 128 MiB")


def run_within(megabytes, script, *arguments):
    """Run a script in a process of its own, which must not need so much memory at its peak; return what it prints."""
    command = [sys.executable, "-c", f"{script}; print(open('/proc/self/status').read())", *map(str, arguments)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=1200)
    # getrusage's ru_maxrss would be that of the tests, where they have more: a process inherits it
    assert int(re.search(r"^VmHWM:\s*(\d+) kB$", ended.stdout, re.M)[1]) < megabytes * 1000
    return ended.stdout


def made_within_a_gigabyte(stage, *options):
    """Call a stage, which must not need 1 GB at its peak."""
    run_within(1000, f"import sys; from stages import {stage}; assert {stage}.main(sys.argv[1:]) == 0", *options)


@pytest.mark.long
def test_the_memory_of_a_part_does_not_grow_with_its_text(tmp_path):
    """One file of 400 MB in one part, and in it documents of 100 MB, of words and of short lines: under 1 GB."""
    made = [json.dumps({"text": text}) + "\n" for text in texts("a", 3000)]
    path = tmp_path / "a.jsonl"
    with open(path, "w") as file:
        while file.tell() < 150 << 20:
            file.writelines(made)
        file.write(json.dumps({"text": "word and word. " * (100 * 1000 * 1000 // 15)}) + "\n")
        file.write(json.dumps({"text": "a\nb\n\n" * (80 * 1000 * 1000 // 5)}) + "\n")
        while file.tell() < 400 << 20:
            file.writelines(made)
    small = write_jsonl(tmp_path / "b.jsonl", [{"text": text} for text in texts("a", 500)])
    recipe = {"kind": "jsonl", "validation": 0.001}
    filters = {"max_words": 10**8, "max_symbols": 0.9, "max_repeated_lines": 1}
    lists = {
        name: listed(tmp_path, name, recipe | {"paths": [str(at)], "filters": filters})
        for name, at in (("a", path), ("b", small))
    }
    tokenizer = trained(tmp_path, [lists["b"]], vocab_size=2000, sample={"b": 1})
    output = tmp_path / "tokens/00000.json"
    made_within_a_gigabyte("tokenize", "--list", lists["a"], "--tokenizer", tokenizer, "--part", 0, "--output", output)
    identity = json.loads(output.read_text())["identity"]
    assert len(identity["train"]["shards"]) > 1
    output = tmp_path / "hashes/00000.json"
    made_within_a_gigabyte("hash_documents", "--list", lists["a"], "--part", 0, "--parts", 1, "--output", output)


@pytest.mark.parametrize(("kind", "megabytes"), [("parquet", 450), ("arrow", 250)])
def test_the_memory_of_long_rows_that_stand_together_is_bounded(tmp_path, kind, megabytes):
    """400 rows of 1 MB: behind short ones, which make the average small; and as two texts that all rows share."""
    long = [f"{number:<1000000}" for number in range(400)]
    if kind == "parquet":
        made = pa.table({"text": pa.array([f"row {number}" for number in range(100_000)] + long)})
        options = {"use_dictionary": False, "compression": "zstd", "write_batch_size": 4}  # rows of a page
        parquet.write_table(made, tmp_path / "a.parquet", **options)
    else:
        made = pa.table({"text": pa.array(long[:2] * 200).dictionary_encode()})
        with pa.ipc.new_file(tmp_path / "a.arrow", made.schema) as writer:
            writer.write_table(made)
    script = (
        "import sys; from stages.lib.sources import documents, source, spans;"
        "recipe = source.SourceRecipe(kind=sys.argv[1], paths=['*']);"
        "print(sum(1 for _ in documents.read(recipe, spans.whole(sys.argv[2:]), [])), 'documents')"
    )
    said = run_within(megabytes, script, kind, tmp_path / f"a.{kind}")
    assert said.startswith(f"{made.num_rows} documents\n")


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_long_rows_of_token_ids_take_their_own_memory_alone(tmp_path, kind):
    """2,000 rows of 16 kB: each row read as a copy of all would be 60 GB."""
    ids = pa.array((np.arange(2000 * 2048) % 1000).astype(np.int64))
    made = pa.table({"ids": pa.ListArray.from_arrays(np.arange(0, 2000 * 2048 + 1, 2048, np.int32), ids)})
    if kind == "parquet":
        parquet.write_table(made, tmp_path / "a.parquet")
    else:
        with pa.ipc.new_file(tmp_path / "a.arrow", made.schema) as writer:
            writer.write_table(made)
    used = pa.total_allocated_bytes()
    held = entries_of(tmp_path / f"a.{kind}", kind, token_ids_field="ids")
    assert pa.total_allocated_bytes() - used < 3 * made.nbytes
    np.testing.assert_array_equal(np.concatenate([document.ids for document in held]), ids)


def test_shared_values_are_not_made_anew_for_each_few_rows(tmp_path, monkeypatch):
    made = pa.table({"text": pa.array([f"text {number}" for number in range(5000)]).dictionary_encode()})
    parquet.write_table(made, tmp_path / "a.parquet")
    asked, iterate = [], parquet.ParquetFile.iter_batches

    def counting(file, *options, **more):
        for batch in iterate(file, *options, **more):
            asked.append(batch.num_rows)
            yield batch

    monkeypatch.setattr(parquet.ParquetFile, "iter_batches", counting)
    found = entries_of(tmp_path / "a.parquet", "parquet")
    assert [document.text for document in found] == made.column("text").to_pylist()
    assert asked == [1024, 1024, 1024, 1024, 904]


@given(text=st.text("a\u00e9\u2003 \n\x1f\u4e2d", max_size=30), piece=st.integers(1, 9))
def test_the_hash_of_a_long_text_is_that_of_its_words(text, piece):
    wanted = duplicates.of_text(" ".join(text.split()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(duplicates, "SEGMENT_CHARACTERS", piece)
        assert duplicates.of_text(text) == wanted


def test_documents_of_ids_are_held_by_their_size(tmp_path):
    ids = pa.array([list(range(1000))] * 64, pa.list_(pa.int32()))
    parquet.write_table(pa.table({"ids": ids}), tmp_path / "a.parquet")
    found = entries_of(tmp_path / "a.parquet", "parquet", token_ids_field="ids")
    assert [len(batch) for batch in documents.batched(found, 16 * 4000)] == [16, 16, 16, 16]
