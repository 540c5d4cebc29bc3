"""Exact duplicates: whatever the parts, of equal documents one stays, and a validation one before all others."""

import os
import resource
import tracemalloc
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages import find_duplicates, hash_documents, tokenize
from stages.lib.sources import duplicates, spans
from tests.helpers.data_fixtures import lines_listed, listed, make, of_parts, refused, texts
from tests.helpers.faults import flip_bit
from tests.helpers.manifests import contents_of, rewrite


def hashed(directory, lists, parts):
    """The hashes of all parts of some sources, and what find_duplicates makes of them: (manifests, manifest)."""
    made = of_parts(hash_documents, directory / "hashes", lists, parts, parts=parts)
    return made, make(find_duplicates, hashes=made, output=directory / "hashes/manifest.json")


def tokenized(directory, lists, tokenizer, parts, found):
    """(Training documents, validation texts, dropped documents by reason) of some sources without their duplicates."""
    options = {"tokenizer": tokenizer, "recipe": {"parts": parts, "duplicates": "drop"}, "duplicates": found}
    return contents_of(of_parts(tokenize, directory / "tokens", lists, parts, **options))


def dropping(directory, source, tokenizer):
    """Options of tokenize for the only part of a source, without its duplicates."""
    options = {"list": source, "tokenizer": tokenizer, "part": 0, "recipe": {"duplicates": "drop"}}
    return options | {"output": directory / "tokens/a/00000.json"}


@pytest.mark.parametrize("parts", [1, 3])
def test_one_of_equal_documents_stays_within_and_across_parts_and_sources(tmp_path, tokenizer, parts, monkeypatch):
    monkeypatch.setattr(spans, "WHOLE_BYTES", 64)
    monkeypatch.setattr(duplicates, "RUN", 8)
    made = texts("a", 50)
    spaced = [text.replace(" ", "  \n") for text in made[:20]]
    lists = [
        lines_listed(tmp_path, [*made, *made[10:30], " ", ""], validation=0.2),
        lines_listed(tmp_path, [*spaced, "another"], name="b", validation=0.2),
    ]
    _, found = hashed(tmp_path, lists, parts)
    documents, held, filtered = tokenized(tmp_path, lists, tokenizer, parts, found)
    unique = len({" ".join(text.split()) for text in [*made, "another"]})
    assert documents + len(held) == unique
    assert filtered == {"duplicate": 71 + 20 - unique, "empty": 2}
    assert len({" ".join(text.split()) for text in held}) == len(held)


def test_documents_without_ids_are_empty_and_repeat_none(tmp_path, tokenizer):
    table = pa.table({"ids": [[], [5, 6], [], [1, 2], [5, 6], [1], [2], [7], [7], [1, 1, 2]]})  # 1 is BOS, 2 is EOS
    with pa.ipc.new_file(str(tmp_path / "a.arrow"), table.schema) as writer:
        writer.write_table(table)
    recipe = {"kind": "arrow", "paths": [str(tmp_path / "a.arrow")], "token_ids_field": "ids", "validation": 0}
    lists = [listed(tmp_path, "a", recipe)]
    _, found = hashed(tmp_path, lists, 1)
    documents, _, filtered = tokenized(tmp_path, lists, tokenizer, 1, found)
    assert documents == 3
    assert filtered == {"duplicate": 2, "empty": 5}


def test_validation_text_is_not_trained_on(tmp_path, tokenizer):
    """Equal texts under other keys lie in both splits: the validation document is kept."""
    entries = [{"text": text, "key": number} for number in range(9) for text in texts("a", 30)]
    source = lines_listed(tmp_path, entries, split_field="key", validation=0.3)
    _, found = hashed(tmp_path, [source], 1)
    documents, held, _ = tokenized(tmp_path, [source], tokenizer, 1, found)
    assert sorted(held) == sorted(set(texts("a", 30)))
    assert documents == 0


ENTRIES = st.lists(st.lists(st.tuples(st.integers(0, 6), st.booleans()), max_size=12), min_size=1, max_size=5)


@given(owners=ENTRIES, run=st.integers(1, 5), at_once=st.integers(1, 7))
@settings(deadline=None, max_examples=60)
def test_runs_of_any_length_give_what_a_set_gives(owners, run, at_once, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(duplicates, "RUN", run)
        runs = []
        for number, entries in enumerate(owners):
            directory = tmp_path_factory.mktemp(f"owner{number}")
            made = duplicates.Runs(directory)
            for at, (text, validation) in enumerate(entries):
                made.add(duplicates.of_text(str(text)), at, validation)
            made.flush()
            runs.append([directory / name for name in made.names])
        sources = [f"source{number // 2}" for number in range(len(owners))]
        found, kept_in = duplicates.repeated(runs, sources, at_once)
    seen, expected, of_first = {}, [[] for _ in owners], [Counter() for _ in owners]
    for side in (True, False):
        for number, entries in enumerate(owners):
            for at, (text, validation) in enumerate(entries):
                if validation == side:
                    if text in seen:
                        expected[number].append(at)
                        of_first[number][seen[text]] += 1
                    seen.setdefault(text, sources[number])
    assert [numbers.tolist() for numbers in found] == [sorted(numbers) for numbers in expected]
    assert kept_in == of_first


def test_a_document_that_most_repeat_takes_no_more_memory_than_others(tmp_path):
    """All of equal hash fall into one slice: of each run only the first of them is held."""
    runs = []
    for number in range(8):
        numbers = np.arange(1 << 16, dtype=np.uint64) | duplicates.VALIDATION_BIT
        duplicates.save(
            tmp_path / f"{number}.npy", np.stack([np.full_like(numbers, 7), np.full_like(numbers, 9), numbers])
        )
        runs.append([tmp_path / f"{number}.npy"])
    tracemalloc.start()  # numpy tells it of its arrays
    found, _ = duplicates.repeated(runs, ["a"] * 8, at_once=1 << 16)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [len(numbers) for numbers in found] == [(1 << 16) - 1, *[1 << 16] * 7]
    held = 8 * sum(map(len, found))
    assert peak - held < 24 * (1 << 16) * 2


def test_runs_may_be_more_than_the_files_that_may_be_open(tmp_path):
    runs = []
    for number in range(60):
        made = duplicates.Runs(tmp_path / str(number))
        made.add(duplicates.of_text(f"text {number // 2}"), 0, False)
        made.flush()
        runs.append([tmp_path / str(number) / name for name in made.names])
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 20, limits[1]))
    try:
        found, _ = duplicates.repeated(runs, ["a"] * 60, at_once=10)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert [numbers.tolist() for numbers in found] == [[], [0]] * 30


def test_hashes_of_other_text_or_of_another_recipe_are_refused(tmp_path, tokenizer, capsys):
    """With other filters the documents have other numbers."""
    _, found = hashed(tmp_path, [lines_listed(tmp_path, texts("a", 9))], 1)
    older = f"tokenize: --duplicates {found} is older than the part's current files; rerun with -R hash_documents"
    options = dropping(tmp_path, lines_listed(tmp_path, texts("a", 9), filters={"min_words": 9}), tokenizer)
    assert refused(capsys, tokenize, duplicates=found, **options) == older
    options = dropping(tmp_path, lines_listed(tmp_path, texts("b", 9)), tokenizer)
    assert refused(capsys, tokenize, duplicates=found, **options) == older
    line = refused(capsys, tokenize, **options)
    assert line == "tokenize: --duplicates must name the manifest of find_duplicates if tokenize.duplicates is drop"


def test_a_flipped_bit_in_hashes_or_in_what_was_found_and_a_part_named_twice_are_refused(tmp_path, tokenizer, capsys):
    source = lines_listed(tmp_path, texts("a", 30) * 2)
    (part,), found = hashed(tmp_path, [source], 1)
    hashes, numbers = part.parent / "00000/run-00000.npy", part.parent / "00000.duplicates.npy"
    flip_bit(numbers, at=-5)
    line = refused(capsys, tokenize, duplicates=found, **dropping(tmp_path, source, tokenizer))
    assert f": {numbers} changed since " in line
    again = tmp_path / "again/manifest.json"
    line = refused(capsys, find_duplicates, hashes=[part, part], output=again)
    assert line == f"find_duplicates: --hashes must name each part once: {part} and {part} are the same part"
    flip_bit(hashes, at=-5)
    assert f": {hashes} changed since " in refused(capsys, find_duplicates, hashes=[part], output=again)


def test_hashes_of_another_number_of_documents_are_refused(tmp_path, tokenizer, capsys):
    """A version that reads other documents would filter others than those that were found."""
    source = lines_listed(tmp_path, texts("a", 9))
    made, _ = hashed(tmp_path, [source], 1)
    rewrite(made[0], documents=8)
    found = make(find_duplicates, hashes=made, output=tmp_path / "hashes/manifest.json")
    line = refused(capsys, tokenize, duplicates=found, **dropping(tmp_path, source, tokenizer))
    said = "was built from 8 documents, but 9 are read; rerun with -R hash_documents"
    assert line == f"tokenize: --duplicates {found} {said}"
    assert not (tmp_path / "tokens/a/00000").exists()
