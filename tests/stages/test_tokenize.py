"""A part of a source: exact framing, nothing lost or half-written, and the same bytes for the same input."""

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter

import pyarrow as pa
import pytest

from stages import tokenize
from stages.lib.sources.entries import split_of
from tests.helpers.data_fixtures import lines_listed, listed, make, refused, texts, tokenized, write_jsonl
from tests.helpers.faults import flip_bit
from tests.helpers.manifests import filtered_of, held_out, identity_of, record_of

BOS, EOS = 1, 2


@pytest.fixture
def source(tmp_path):
    """The list of a source of 7 files of unlike size, 70 documents in all."""
    made = texts("a", 70)
    for number in range(7):
        chosen = made[number * (number - 1) // 2 * 3 :][: 1 + 3 * number]
        write_jsonl(tmp_path / f"texts/{number}.jsonl", [{"text": f"{number}: {text}"} for text in chosen])
    return listed(tmp_path, "a", {"kind": "jsonl", "paths": [str(tmp_path / "texts/*.jsonl")], "validation": 0.2})


def _documents(part, split):
    """The documents of one side of a part, as Arrow reads them."""
    (shard,) = identity_of(part)[split]["shards"]
    with pa.memory_map(str(part.parent / shard["path"])) as file:
        return pa.ipc.open_file(file).read_all().column("tokens").to_pylist()


def _tree(directory):
    return {path: path.stat().st_mtime_ns for path in sorted(directory.rglob("*")) if path.is_file()}


def test_a_document_is_bos_its_ids_eos_or_without_bos_its_ids_eos(tmp_path, source, tokenizer):
    from stages.lib.tokenizer.tokenizer import Tokenizer

    write_jsonl(tmp_path / "texts/special.jsonl", [{"text": "</s><s> a </s>"}, {"text": "</s>"}])
    source = listed(tmp_path, "a", identity_of(source)["recipe"])
    expected = {"train": [], "validation": []}
    encode = Tokenizer(tokenizer).encode
    for file in sorted((tmp_path / "texts").iterdir()):
        for line in file.read_text().splitlines():
            text = json.loads(line)["text"]
            ids = [BOS, *encode([text])[0].tolist(), EOS]
            assert (ids.count(BOS), ids.count(EOS)) == (1, 1)  # those that a text names are text
            expected[split_of(hashlib.sha256(text.encode()).hexdigest(), 0.2)].append(ids)
    (part,) = tokenized(tmp_path, "a", source, tokenizer)
    assert _documents(part, "validation") == expected["validation"]
    assert sorted(_documents(part, "train")) == sorted(expected["train"])
    assert _documents(part, "train") != expected["train"]  # they are shuffled
    assert {"train-00000.arrow", "validation.jsonl"} < {path.name for path in part.with_suffix("").iterdir()}
    (without,) = tokenized(tmp_path / "without", "a", source, tokenizer, bos=False)
    for split in ("train", "validation"):
        assert [[BOS, *ids] for ids in _documents(without, split)] == _documents(part, split)
    assert identity_of(without)["tokenizer"]["bos_added"] is False


def test_documents_that_cannot_be_read_are_counted_by_reason(tmp_path, tokenizer):
    path = tmp_path / "a.jsonl"
    lines = [
        b'{"text": "good"}',
        b"",
        b'{"text": ""}',
        b'{"text": " \\n"}',
        b"{",
        b'{"text": "\\ud800"}',
        b'{"text": "\xff"}',
        b'{"body": "x"}',
    ]
    lines += [b'{"text": 7}', b'["text"]', b'{"text": null}', b'{"text": "good as well"}']
    path.write_bytes(b"\n".join(lines))
    source = listed(tmp_path, "a", {"kind": "jsonl", "paths": [str(path)], "validation": 0, "max_malformed": 1})
    (part,) = tokenized(tmp_path, "a", source, tokenizer)
    assert filtered_of(part) == {"empty": 2, "no text in text": 4, "not JSON": 3}
    assert len(_documents(part, "train")) == 2


def test_a_missing_split_field_is_counted_and_equal_values_stay_together(tmp_path, tokenizer):
    entries = [{"text": f"{book} {page}", "book": book} for book in range(30) for page in range(3)] + [
        {"text": "no book"},
        {"text": "null is no book", "book": None},
    ]
    source = lines_listed(tmp_path, entries, split_field="book", validation=0.4)
    (part,) = tokenized(tmp_path, "a", source, tokenizer)
    assert filtered_of(part) == {"no text or whole number in book": 2}
    pages = [text.split()[0] for text in held_out(part)]
    assert pages
    assert all(pages.count(book) == 3 for book in pages)


def test_text_that_is_not_utf_8_is_dropped_and_a_byte_order_mark_is_no_text(tmp_path, tokenizer, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the split key is the name of the file, the same in every run of this test
    (tmp_path / "bad.txt").write_bytes(b"\xff\xfe")
    (tmp_path / "good.txt").write_bytes("\ufeffgood".encode())
    recipe = {"kind": "text", "paths": ["*.txt"], "validation": 0.9, "max_malformed": 0.5}
    (part,) = tokenized(tmp_path, "a", listed(tmp_path, "a", recipe), tokenizer)
    assert filtered_of(part) == {"not UTF-8": 1}
    assert held_out(part) == ["good"]


@pytest.mark.parametrize("parts", [2, 3, 9])
def test_parts_hold_each_file_once(tmp_path, source, tokenizer, parts):
    made = tokenized(tmp_path, "a", source, tokenizer, parts=parts)
    names = [file["name"] for part in made for file in identity_of(part)["inputs"]]
    assert names == [file["name"] for file in identity_of(source)["files"]]
    (whole,) = tokenized(tmp_path / "whole", "a", source, tokenizer)
    for split in ("train", "validation"):
        assert sorted(sum((_documents(part, split) for part in made), [])) == sorted(_documents(whole, split))
    assert held_out(*made) == held_out(whole)


def test_parts_are_of_about_equal_bytes(tmp_path, tokenizer):
    for number in range(40):
        (tmp_path / f"{number:02d}.txt").write_text("x" * (number + 1))
    source = listed(tmp_path, "a", {"kind": "text", "paths": [str(tmp_path / "*.txt")]})
    made = tokenized(tmp_path, "a", source, tokenizer, parts=4)
    sizes = [sum(file["bytes"] for file in identity_of(part)["inputs"]) for part in made]
    assert sum(sizes) == 820
    assert max(sizes) - min(sizes) <= 2 * 40


def test_a_second_run_writes_the_same_manifest_without_work_unless_the_recipe_changed(tmp_path, source, tokenizer):
    (part,) = tokenized(tmp_path, "a", source, tokenizer)
    first, payload = part.read_bytes(), _tree(part.with_suffix(""))
    part.unlink()  # as Snakemake does before an attempt
    tokenized(tmp_path, "a", source, tokenizer)
    assert part.read_bytes() == first
    assert _tree(part.with_suffix("")) == payload
    for file in (tmp_path / "texts").iterdir():  # equal bytes with other times
        os.utime(file, ns=(10**18, 10**18))
    touched = listed(tmp_path / "touched", "a", identity_of(source)["recipe"])
    assert touched.read_bytes() != source.read_bytes()
    (again,) = tokenized(tmp_path / "touched", "a", touched, tokenizer)
    assert identity_of(again) == identity_of(part)
    before = _documents(part, "train")
    tokenized(tmp_path, "a", source, tokenizer, shuffle_seed=1)
    assert _documents(part, "train") != before
    assert sorted(_documents(part, "train")) == sorted(before)


@pytest.mark.parametrize("spoil", ["truncate", "flip", "remove", "manifest"])
def test_a_spoilt_payload_is_made_again(tmp_path, source, tokenizer, spoil):
    (part,) = tokenized(tmp_path, "a", source, tokenizer)
    shard = part.with_suffix("") / "train-00000.arrow"
    identity = identity_of(part)
    if spoil == "manifest":
        (part.with_suffix("") / "manifest.json").write_text("{")
    elif spoil == "remove":
        shard.unlink()
    elif spoil == "flip":
        flip_bit(shard, at=-100)
    else:
        shard.write_bytes(shard.read_bytes()[:-1])
    tokenized(tmp_path, "a", source, tokenizer)
    assert identity_of(part) == identity
    assert len(_documents(part, "train")) == identity["train"]["documents"]


def test_a_file_that_changed_since_it_was_listed_is_named(tmp_path, source, tokenizer, capsys):
    file = tmp_path / "texts/3.jsonl"
    file.write_bytes(file.read_bytes() + b"\n")
    line = refused(capsys, tokenize, list=source, tokenizer=tokenizer, part=0, output=tmp_path / "0" / "00000.json")
    assert line.startswith(f"tokenize: {file} has ")
    file.unlink()
    line = refused(capsys, tokenize, list=source, tokenizer=tokenizer, part=0, output=tmp_path / "0" / "00000.json")
    assert line.startswith(f"tokenize: {file} is missing, but {source} lists it")
    assert not (tmp_path / "0").exists()


def test_a_part_without_files_is_an_empty_part_and_one_beyond_the_last_a_mistake(tmp_path, source, tokenizer, capsys):
    options = {"list": source, "tokenizer": tokenizer, "recipe": {"parts": 50}}
    output = make(tokenize, **options, part=8, output=tmp_path / "tokens" / "00008.json")
    for split in ("train", "validation"):
        assert identity_of(output)[split]["tokens"] == identity_of(output)[split]["documents"] == 0
        assert _documents(output, split) == []
    for part in (-1, 50):
        line = refused(capsys, tokenize, **options, part=part, output=tmp_path / "o" / "00000.json")
        assert line == f"tokenize: --part must be from 0 to 49 for 50 parts, got {part}"


@pytest.mark.long
def test_a_part_killed_at_any_moment_is_made_whole_by_the_next_run(tmp_path, tokenizer):
    """15 kills, most of them while it reads, encodes, writes and renames: the same bytes, and nothing left over."""
    entries = [{"text": f"{number} {text}"} for number in range(40) for text in texts("a", 400)]
    source = lines_listed(tmp_path, entries, validation=0.1)
    (whole,) = tokenized(tmp_path / "whole", "a", source, tokenizer)
    output = tmp_path / "tokens/00000.json"
    command = [sys.executable, "-m", "stages.tokenize", "--list", source, "--tokenizer", tokenizer, "--part", "0"]
    command += ["--output", output]
    chance, killed = random.Random(7), Counter()
    seconds = record_of(whole)["seconds"]
    while killed.total() < 15:
        if output.exists():
            shutil.rmtree(output.parent)
        process = subprocess.Popen(list(map(str, command)), stderr=subprocess.DEVNULL)
        begun = wait_for(lambda: list(tmp_path.glob("tokens/.00000.*.making")), process)
        time.sleep(chance.uniform(0, seconds))
        process.kill()
        process.wait()
        killed["in the work" if begun and process.returncode == -signal.SIGKILL else "outside"] += 1
    assert killed["in the work"] >= 5
    subprocess.run(list(map(str, command)), check=True)
    assert sorted(path.name for path in output.parent.iterdir()) == ["00000", "00000.json"]
    names = [sorted(path.name for path in part.with_suffix("").iterdir()) for part in (output, whole)]
    assert names[0] == names[1]
    assert identity_of(output) == identity_of(whole)
    for name in ("train-00000.arrow", "validation-00000.arrow", "validation.jsonl"):
        assert (output.with_suffix("") / name).read_bytes() == (whole.with_suffix("") / name).read_bytes()


def wait_for(found, process):
    """Wait until something is found or a process ends; returns whether it was found."""
    while process.poll() is None:
        if found():
            return True
        time.sleep(0.01)
    return False
