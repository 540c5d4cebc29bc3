"""Directories as datatrove, Dolma and NeMo Curator write them: documents with their ids, and nothing beside them."""

import gzip
import json
from collections import Counter

import pyarrow as pa
import pytest
from pyarrow import parquet

from stages.lib.sources import documents, source, spans
from stages.lib.sources.source import SourceRecipe
from tests.helpers.data_fixtures import part_of, texts
from tests.helpers.manifests import filtered_of

TEXTS = [text for text in texts("a", 30) if text.strip()]


def write_lines(path, entries):
    """JSON lines, compressed if the name says so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = "".join(json.dumps(entry) + "\n" for entry in entries).encode()
    path.write_bytes(gzip.compress(data) if path.name.endswith(".gz") else data)


def write_rows(path, entries):
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.Table.from_pylist(entries), path)


def read(directory, kind, **recipe):
    made = SourceRecipe(kind=kind, paths=[str(directory)], **recipe)
    left_out = Counter()
    names = list(source.list_files("a", made, left_out))
    return list(documents.read(made, spans.whole(names), names)), left_out


@pytest.mark.parametrize("form", ["jsonl.gz", "parquet"])
@pytest.mark.parametrize("is_expanded", [False, True])
def test_the_files_of_datatroves_writers_are_read_with_their_ids_and_metadata(tmp_path, form, is_expanded):
    """As JsonlWriter and ParquetWriter of datatrove 0.10.1 write them: a file per rank, metadata inside or flat."""
    for rank in (0, 1):
        rows = []
        for number, text in list(enumerate(TEXTS))[rank::2]:
            metadata = {"url": f"http://h{number % 3}.org", "score": number / 2}
            rest = metadata if is_expanded else {"metadata": metadata}
            rows.append({"text": text, "id": f"<urn:{number}>"} | rest)
        write = write_rows if form == "parquet" else write_lines
        write(tmp_path / f"out/{rank:05d}.{form}", rows)
    (tmp_path / "out/stats.txt").write_text("x")
    field = "url" if is_expanded else "metadata.url"
    found, left_out = read(tmp_path / "out", "datatrove", split_field=field, validation=0.4)
    assert {entry.id: entry.text for entry in found} == {f"<urn:{number}>": text for number, text in enumerate(TEXTS)}
    assert len({entry.split for entry in found if int(entry.id[5:-1]) % 3 == 0}) == 1
    assert left_out == {".txt": 1}


@pytest.mark.parametrize("pattern", ["", "*/**/*.jsonl.gz", "documents"])
def test_the_documents_of_dolma_are_read_without_the_attributes_beside_them(tmp_path, pattern):
    folder = tmp_path / "attributes of mine" / "data"
    for month in (1, 2):
        ids = [(f"{month}-{number}", text) for number, text in enumerate(TEXTS)]
        rows = [{"id": id_, "text": text, "source": "web", "added": "2026", "metadata": {}} for id_, text in ids]
        write_lines(folder / f"documents/2026-{month}/a.jsonl.gz", rows)
        rows = [{"id": id_, "source": "web", "attributes": {"toxic": [[0, len(text), 0.7]]}} for id_, text in ids]
        write_lines(folder / f"attributes/toxicity-0/2026-{month}/a.jsonl.gz", rows)
    found, left_out = read(folder / pattern, "dolma")
    expected = {f"{month}-{number}": text for month in (1, 2) for number, text in enumerate(TEXTS)}
    assert {entry.id: entry.text for entry in found} == expected
    assert left_out["of attributes"] == (0 if pattern == "documents" else 2)


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
@pytest.mark.parametrize("ids", ["id", "url", None])
def test_nemo_curators_files_have_ids_if_a_step_added_them(tmp_path, form, ids):
    rows = [
        {"text": text, "language": "EN"} | ({ids: f"x {number}"} if ids else {}) for number, text in enumerate(TEXTS)
    ]
    path = tmp_path / f"out/1a2b3c4d5e6f.{form}"
    (write_rows if form == "parquet" else write_lines)(path, rows)
    found, _ = read(tmp_path / "out", "nemo_curator")
    first = 0 if form == "parquet" else 1
    expected = [f"x {number}" if ids else f"{path}:{number + first}" for number in range(len(TEXTS))]
    assert [(entry.id, entry.text) for entry in found] == list(zip(expected, TEXTS, strict=True))


def test_a_record_without_text_is_malformed(tmp_path, tokenizer):
    write_lines(tmp_path / "out/00000.jsonl.gz", [{"text": text, "id": text[:3]} for text in TEXTS] + [{"id": "x"}])
    part = part_of(tmp_path, tokenizer, kind="datatrove", paths=[str(tmp_path / "out")])
    assert filtered_of(part) == {"no text in text": 1}
