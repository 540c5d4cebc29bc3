"""Fields, ids and license of a source's documents, filtered ones, and files of datatrove, Dolma and NeMo Curator."""

import gzip
import json
import sys
from collections import Counter

import fsspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import dataset, parquet

from stages import index, tokenize
from stages.lib import manifest
from stages.lib.sources import documents, examples, filters, quality_rules, source, spans
from stages.lib.sources.filters import FilterRecipe
from stages.lib.sources.source import SourceRecipe
from stages.lib.tokenizer.tokenizer import Tokenizer
from tests.helpers.data_fixtures import (
    entries_of,
    in_plain_lines,
    listed,
    make,
    parquet_of,
    part_of,
    refused,
    texts,
    tokenized,
    write_jsonl,
)
from tests.helpers.manifests import filtered_of, held_out, identity_of, record_of, shards_of

TEXTS = texts("a", 60)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """(tokenizer, the shards' bytes of TEXTS as JSON lines)."""
    return in_plain_lines(tmp_path_factory.mktemp("plain"), [{"text": text} for text in TEXTS], validation=0.2)


def reasons_of(recipe, texts):
    return [outcome.reason for outcome in filters.judged(recipe, texts, list(map(str, range(len(texts)))))]


def write_arrow(path, columns):
    """An Arrow file of some columns, in batches of a few rows."""
    path.parent.mkdir(exist_ok=True)
    table = pa.table(columns)
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=7)
    return str(path)


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
@pytest.mark.parametrize("framed", [True, False])
@pytest.mark.parametrize("column", [pa.list_(pa.int32()), pa.large_list(pa.uint16())])
def test_token_ids_are_taken_as_they_are_and_bos_is_never_doubled(tmp_path, plain, kind, framed, column):
    tokenizer = Tokenizer(plain[0])
    ids = [encoded.tolist() for encoded in tokenizer.encode(TEXTS)]
    rows = [[tokenizer.bos, *some, tokenizer.eos] for some in ids] if framed else ids
    columns = {"ids": pa.array(rows, column), "text_of": TEXTS}
    if kind == "arrow":
        path = write_arrow(tmp_path / "a.arrow", columns)
    else:
        path = str(tmp_path / "a.parquet")
        parquet.write_table(pa.table(columns), path)
    part = part_of(tmp_path, plain[0], kind=kind, paths=[path], token_ids_field="ids", split_field="text_of")
    assert set() < set(held_out(part)) < set(TEXTS)
    found = []
    for shard in sorted(part.with_suffix("").glob("*.arrow")):
        found += pa.ipc.open_file(str(shard)).read_all().column("tokens").to_pylist()
    assert sorted(found) == sorted([tokenizer.bos, *some, tokenizer.eos] for some in ids)
    sizes = [identity_of(part)[side]["text_bytes"] for side in ("train", "validation")]
    assert sum(sizes) == sum(len(text.encode()) for text in TEXTS)


def test_padding_of_rows_is_left_out_and_a_row_of_several_documents_is_malformed(tmp_path, plain, capsys):
    tokenizer = Tokenizer(plain[0])
    ids = [tokenizer.encode([text])[0].tolist() for text in TEXTS]
    bos, eos, pad = tokenizer.bos, tokenizer.eos, 0
    shapes = [lambda own: [bos, *own, eos, pad, pad, pad], lambda own: [*own, eos, eos, eos], lambda own: [*own, eos]]
    shapes += [lambda own: [pad, pad, bos, *own, eos], lambda own: [bos, *own, eos, pad]]
    rows = [shapes[number % 5](own) for number, own in enumerate(ids)]
    key = [str(number) for number in range(len(rows))]
    parts = []
    for name, own in (("plain", ids), ("padded", [*rows, [bos, *ids[0], eos, bos, *ids[1], eos]])):
        table = {"ids": own, "key": [*key, "x"][: len(own)]}
        path = write_arrow(tmp_path / name / "a.arrow", table)
        recipe = {"kind": "arrow", "paths": [path], "token_ids_field": "ids", "split_field": "key"}
        parts.append(part_of(tmp_path / name, plain[0], **recipe))
    assert shards_of(parts[0]) == shards_of(parts[1])
    record = record_of(parts[1])
    assert record["padding"] == {"documents": 48, "ids": 12 * (3 + 2 + 2 + 1)}
    assert record["dropped"] == {"EOS within the ids of a row, which must be one document": 1}
    assert "source a: 96 ids of padding in 48 rows are left out" in capsys.readouterr().err


def test_ids_of_another_tokenizer_are_refused(tmp_path, plain, capsys):
    path = write_arrow(tmp_path / "a.arrow", {"ids": [[5, 6], [7, 320]]})
    source = listed(tmp_path, "a", {"kind": "arrow", "paths": [path], "token_ids_field": "ids"})
    line = refused(capsys, tokenize, list=source, tokenizer=plain[0], part=0, output=tmp_path / "t/00000.json")
    assert line == f"tokenize: {path}:1 must hold ids of the tokenizer, from 0 to 319, got 320"


def test_an_id_field_names_documents(tmp_path, plain):
    entries = [{"text": text, "url": f"page {number}"} for number, text in enumerate(TEXTS)] + [{"text": "x"}]
    path = write_jsonl(tmp_path / "a.jsonl", entries)
    part = part_of(tmp_path, plain[0], kind="jsonl", paths=[path], id_field="url")
    validation = [json.loads(line) for line in (part.with_suffix("") / "validation.jsonl").open()]
    assert all(TEXTS[int(entry["id"].removeprefix("page "))] == entry["text"] for entry in validation)
    assert record_of(part)["dropped"] == {"no text or whole number in url": 1}


def test_more_malformed_records_than_allowed_are_refused(tmp_path, plain, capsys):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "one"}\n' * 9 + "{\n")
    source = listed(tmp_path, "a", {"kind": "jsonl", "paths": [str(path)]})
    output = tmp_path / "t/00000.json"
    line = refused(capsys, tokenize, list=source, tokenizer=plain[0], part=0, output=output)
    assert line == (
        "tokenize: sources.a.max_malformed must be at least the share of malformed records, 1 of 10 "
        "(1 not JSON), got 0.05"
    )
    assert not list(output.parent.iterdir())
    part = part_of(tmp_path, plain[0], kind="jsonl", paths=[str(path)], max_malformed=0.1)
    assert record_of(part)["dropped_examples"] == {"not JSON": [{"id": f"{path}:10", "text": ""}]}


def test_the_share_of_malformed_records_is_that_of_the_source_and_changes_no_identity(tmp_path, plain, capsys):
    """143 records, 5 malformed, all of them in the first of 4 files and parts."""
    for number, entries in enumerate((39, 35, 35, 34)):
        lines = [json.dumps({"text": f"kara {number} {entry}"}) for entry in range(entries)]
        lines[:5] = ["{"] * 5 if number == 0 else lines[:5]
        (tmp_path / f"{number}.jsonl").write_text("".join(f"{line:60}\n" for line in lines))
    recipe = {"kind": "jsonl", "paths": [str(tmp_path / "*.jsonl")], "validation": 0.2}
    made = listed(tmp_path, "a", recipe)
    parts = tokenized(tmp_path, "a", made, plain[0], parts=4)
    assert [record_of(part)["malformed"] for part in parts] == [5, 0, 0, 0]
    output = tmp_path / "tokens/main/manifest.json"
    corpus = make(index, tokenizer=plain[0], parts=parts, output=output)
    digest = manifest.read(corpus).digest
    output.unlink()
    line = refused(capsys, index, tokenizer=plain[0], parts=parts, output=output, max_malformed={"a": 0.03})
    assert line == (
        "index: sources.a.max_malformed must be at least the share of malformed records, 5 of 143 (5 not JSON), "
        "got 0.03"
    )
    identity = identity_of(made)
    made = listed(tmp_path, "a", recipe | {"max_malformed": 0.5})
    assert identity_of(made) == identity and record_of(made)["max_malformed"] == 0.5

    for part in parts:  # as they were written when max_malformed was an identity key
        kept = manifest.read(part)
        old = kept.identity | {"source_recipe": kept.identity["source_recipe"] | {"max_malformed": 0.5}}
        for path in (part, part.with_suffix("") / "manifest.json"):
            manifest.write(path, "tokenize", old, kept.record)
    times = [path.stat().st_mtime_ns for path in sorted(tmp_path.rglob("*.arrow"))]
    parts = tokenized(tmp_path, "a", made, plain[0], parts=4)
    assert [path.stat().st_mtime_ns for path in sorted(tmp_path.rglob("*.arrow"))] == times, "nothing is made again"
    assert manifest.read(make(index, tokenizer=plain[0], parts=parts, output=output)).digest == digest


@pytest.mark.parametrize(
    ("recipe", "kept", "dropped"),
    [
        ({"min_bytes": 5}, "five5|a b c d e f", "abc"),
        ({"max_bytes": 5}, "five5", "sixsix"),
        ({"max_bytes": 3}, "\u00e9a", "\u00e9\u00e9"),
        ({"min_words": 3}, "a b c|a\nb\tc", "a b"),
        ({"max_words": 3}, "a b c", "a b c d"),
        ({"min_words": 5}, "\u4e00\u3000\u4e8c\u3000\u4e09\u3000\u56db\u3000\u4e94", "a\u200bb c d e"),
        ({"max_symbols": 0.25}, "\u00a0\u00a0\u00a0\u00a0abc", "\u200b\u200babc"),
        ({"max_symbols": 0.25}, "abc.|\u0917\u094b\u0964\u0964 \u0917\u094b\u0917", "ab.."),
        ({"max_repeated_lines": 0.5}, "one\none|one\n\n\n\ntwo", "one\none\n one "),
    ],
)
def test_filters_reject_documents_that_break_them(recipe, kept, dropped):
    found = reasons_of(FilterRecipe(**recipe), [*kept.split("|"), dropped])
    assert found == [None] * (1 + kept.count("|")) + [f"filters.{next(iter(recipe))}"]


def test_white_space_is_what_python_takes_for_it():
    every = [chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000]
    words = filters.measure("words", pa.array([f"a{character}b" for character in every])).tolist()
    assert words == [len(f"a{character}b".split()) for character in every]
    spaces = [character for character in every if character.isspace()]
    assert filters.measure("symbols", pa.array(spaces)).tolist() == [0] * len(spaces)


@given(st.lists(st.text(max_size=60), max_size=20))
@settings(deadline=None)
def test_filters_measure_as_one_would_by_hand(made):
    column = pa.array(made, pa.large_string())
    assert filters.measure("bytes", column).tolist() == [len(text.encode()) for text in made]
    for text, share in zip(made, filters.measure("repeated_lines", column), strict=True):
        seen, repeated, total = set(), 0, 0
        for line in (pa.compute.utf8_trim_whitespace(line).as_py() for line in text.split("\n")):
            repeated += len(line.encode()) * (line in seen)
            total += len(line.encode())
            seen.add(line)
        assert np.isclose(share, repeated / max(1, total))


def test_of_a_long_text_the_first_lines_are_looked_at(monkeypatch):
    monkeypatch.setattr(quality_rules, "MEASURED_CHARACTERS", 8)
    recipe = FilterRecipe(max_repeated_lines=0.3)
    texts = ["one\none\ntwo three four five", "one\ntwo\none\none\none"]
    assert reasons_of(recipe, texts) == ["filters.max_repeated_lines", None]


def test_a_bad_beginning_is_not_refused_for_the_share_of_the_whole(tmp_path, plain, monkeypatch):
    monkeypatch.setattr(documents, "CHECKED_EVERY", 10)
    path = tmp_path / "a.jsonl"
    path.write_text("{\n" * 4 + '{"text": "one"}\n' * 96)
    part = part_of(tmp_path, plain[0], kind="jsonl", paths=[str(path)])
    assert record_of(part)["dropped"] == {"not JSON": 4}


def test_the_license_of_a_source_goes_into_the_corpus(tmp_path, plain):
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": text} for text in TEXTS])
    part = part_of(tmp_path, plain[0], kind="jsonl", paths=[path], license="CC-BY-4.0")
    corpus = make(index, tokenizer=plain[0], parts=[part], output=tmp_path / "tokens/main/manifest.json")
    assert json.loads(corpus.read_text())["record"]["licenses"] == {"a": "CC-BY-4.0"}
    before = identity_of(corpus)
    written = part.with_suffix("") / "train-00000.arrow"
    times = written.stat()
    part = part_of(tmp_path, plain[0], kind="jsonl", paths=[path], license="CC0-1.0")
    corpus = make(index, tokenizer=plain[0], parts=[part], output=tmp_path / "tokens/main/manifest.json")
    assert identity_of(corpus) == before  # else whatever was trained on it would be trained anew
    assert json.loads(corpus.read_text())["record"]["licenses"] == {"a": "CC0-1.0"}
    assert written.stat().st_mtime_ns == times.st_mtime_ns, "nothing is tokenized again"


@pytest.mark.parametrize("path", ["texts", "texts/**/*.json*", "memory://texts"])
def test_a_directory_means_what_spark_arrow_and_datasets_read_of_it(tmp_path, monkeypatch, capsys, path):
    others = ["_temporary/0/c.jsonl", ".hidden.jsonl", "_SUCCESS", "deep/.a.jsonl.crc", "year/_tmp/x.jsonl"]
    taken = ["b.json", "deep/a.jsonl", "year/_y=2/d.jsonl"]
    contents = dict.fromkeys([*others, *taken], '{"text": "one"}\n')
    if "*" not in path:
        contents |= {"README.md": "what", "dataset_info.json": "{}", "empty.jsonl": ""}
    monkeypatch.chdir(tmp_path)
    for name, content in contents.items():
        if path.startswith("memory"):
            fsspec.filesystem("memory").pipe(f"/texts/{name}", content.encode())
        (tmp_path / "texts" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "texts" / name).write_text(content)
    left_out = Counter()
    found = source.list_files("a", source.SourceRecipe(kind="jsonl", paths=[path]), left_out)
    assert [name.partition("texts/")[2] for name in found] == taken
    assert left_out["hidden"] >= 2 and left_out["empty"] == ("*" not in path)
    if "*" not in path:
        assert (left_out[".md"], left_out[".json"]) == (1, 1)
    if path == "texts":
        read = dataset.dataset("texts", pa.schema([]), "json").files
        theirs = {name.partition("texts/")[2] for name in read if name.endswith(("json", "jsonl"))}
        assert theirs - {"dataset_info.json", "empty.jsonl"} == {*taken} - {"year/_y=2/d.jsonl"}
        assert source.counted(left_out) == "5 hidden, 1 empty, 1 .md, 1 .json"
        made = listed(tmp_path, "a", {"kind": "jsonl", "paths": [path]})
        assert "left out of its directories: 5 hidden" in capsys.readouterr().err
        assert len(identity_of(made)["files"]) == 3


@pytest.mark.parametrize("field", ["doc.text", "doc.inner.text", "doc.b.c"])
def test_a_dotted_field_is_that_of_a_mapping_or_struct_in_every_format(tmp_path, field):
    *path, last = {"doc.b.c": ["doc", "b.c"]}.get(field, field.split("."))
    records = [{last: text, "ppl": 1.5} if number % 5 else None for number, text in enumerate(TEXTS)]
    for name in reversed(path):
        records = [{name: record} for record in records]
    table = pa.Table.from_pylist(records)
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=9)
    write_arrow(tmp_path / "a.arrow", {name: table.column(name) for name in table.column_names})
    write_jsonl(tmp_path / "a.jsonl", records)
    for kind in ("jsonl", "parquet", "arrow"):
        found = entries_of(tmp_path / f"a.{kind}", kind, text_field=field, id_field=None)
        assert [entry.text for entry in found] == [text if number % 5 else None for number, text in enumerate(TEXTS)]


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_a_number_that_is_not_finite_beside_the_text_drops_nothing(tmp_path, number):
    lines = [f'{{"text": {json.dumps(text)}, "ppl": {number if at % 9 else 2}}}\n' for at, text in enumerate(TEXTS)]
    broken = ['{"text": "\\ud800", "ppl": NaN}\n', '{"text": "a", "ppl": NaNs}\n', "[" * 99999 + "NaN\n"]
    (tmp_path / "a.jsonl").write_text("".join([*lines, *broken]))
    found = entries_of(tmp_path / "a.jsonl", "jsonl")
    assert [entry.text for entry in found[:-3]] == TEXTS
    assert [entry.reason for entry in found[-3:]] == ["not JSON"] * 3
    pairs = [f'{{"prompt": "a", "completion": "b", "score": {number}}}\n']
    (tmp_path / "p.jsonl").write_text("".join(pairs))
    recipe = source.SourceRecipe(kind="prompt_completion", paths=["*"])
    assert len(list(examples.pairs(recipe, [str(tmp_path / "p.jsonl")]))) == 1


PAGES = [text for text in texts("a", 30) if text.strip()]


def write(path, entries):
    """A file of parquet or JSON lines, compressed, as its name says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        data = parquet_of(entries)
    else:
        data = "".join(json.dumps(entry) + "\n" for entry in entries).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def read_all(directory, kind, **recipe):
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
        for number, text in list(enumerate(PAGES))[rank::2]:
            metadata = {"url": f"http://h{number % 3}.org", "score": number / 2}
            rest = metadata if is_expanded else {"metadata": metadata}
            rows.append({"text": text, "id": f"<urn:{number}>"} | rest)
        write(tmp_path / f"out/{rank:05d}.{form}", rows)
    (tmp_path / "out/stats.txt").write_text("x")
    field = "url" if is_expanded else "metadata.url"
    found, left_out = read_all(tmp_path / "out", "datatrove", split_field=field, validation=0.4)
    assert {entry.id: entry.text for entry in found} == {f"<urn:{number}>": text for number, text in enumerate(PAGES)}
    assert len({entry.split for entry in found if int(entry.id[5:-1]) % 3 == 0}) == 1
    assert left_out == {".txt": 1}


@pytest.mark.parametrize("pattern", ["", "*/**/*.jsonl.gz", "documents"])
def test_the_documents_of_dolma_are_read_without_the_attributes_beside_them(tmp_path, pattern):
    folder = tmp_path / "attributes of mine" / "data"
    for month in (1, 2):
        ids = [(f"{month}-{number}", text) for number, text in enumerate(PAGES)]
        rows = [{"id": id_, "text": text, "source": "web", "added": "2026", "metadata": {}} for id_, text in ids]
        write(folder / f"documents/2026-{month}/a.jsonl.gz", rows)
        rows = [{"id": id_, "source": "web", "attributes": {"toxic": [[0, len(text), 0.7]]}} for id_, text in ids]
        write(folder / f"attributes/toxicity-0/2026-{month}/a.jsonl.gz", rows)
    found, left_out = read_all(folder / pattern, "dolma")
    expected = {f"{month}-{number}": text for month in (1, 2) for number, text in enumerate(PAGES)}
    assert {entry.id: entry.text for entry in found} == expected
    assert left_out["of attributes"] == (0 if pattern == "documents" else 2)


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
@pytest.mark.parametrize("ids", ["id", "url", None])
def test_nemo_curators_files_have_ids_if_a_step_added_them(tmp_path, form, ids):
    rows = [
        {"text": text, "language": "EN"} | ({ids: f"x {number}"} if ids else {}) for number, text in enumerate(PAGES)
    ]
    path = tmp_path / f"out/1a2b3c4d5e6f.{form}"
    write(path, rows)
    found, _ = read_all(tmp_path / "out", "nemo_curator")
    first = 0 if form == "parquet" else 1
    expected = [f"x {number}" if ids else f"{path}:{number + first}" for number in range(len(PAGES))]
    assert [(entry.id, entry.text) for entry in found] == list(zip(expected, PAGES, strict=True))


def test_a_record_without_text_is_malformed(tmp_path, tokenizer):
    write(tmp_path / "out/00000.jsonl.gz", [{"text": text, "id": text[:3]} for text in PAGES] + [{"id": "x"}])
    part = part_of(tmp_path, tokenizer, kind="datatrove", paths=[str(tmp_path / "out")])
    assert filtered_of(part) == {"no text in text": 1}
