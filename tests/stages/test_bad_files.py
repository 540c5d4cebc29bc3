"""Bad input around the records: files that change, that cannot be opened or listed, a disk that is full.

What stands in them is of test_bad_sources.py.
"""

import contextlib
import json
import os
import shutil
import tempfile
from pathlib import Path

import pytest

from stages import (
    copy_candidates,
    find_candidates,
    find_duplicates,
    hash_documents,
    index,
    sketch,
    tokenize,
    train_tokenizer,
    verify_duplicates,
)
from stages import list as listing
from stages.lib.sources import examples, source, storage
from stages.lib.sources.kinds.registry import KINDS
from tests.helpers.data_fixtures import lines_listed, listed, make, part_of, refused, texts, tokenized, write_jsonl
from tests.helpers.faults import files_of_at_most
from tests.helpers.manifests import documents_of

TEXTS = texts("a", 40)
LINES = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS).encode()


def _rewrite(path):
    path.write_bytes(path.read_bytes().swapcase())


def _append(path):
    with open(path, "ab") as file:
        file.write(b'{"text": "more"}\n')


def _swap(path):
    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    path.unlink()
    path.symlink_to(other)


def after_hashing(monkeypatch, do):
    """Let something happen between the hashing of files and their reading."""
    real = source.described_inputs

    def hashed(*arguments):
        found = real(*arguments)
        do()
        return found

    monkeypatch.setattr(source, "described_inputs", hashed)


@pytest.mark.parametrize("stage", [tokenize, hash_documents])
@pytest.mark.parametrize("change", [_rewrite, _append, _swap, Path.unlink])
@pytest.mark.parametrize("when", ["after hashing", "while reading"])
def test_a_file_that_changes_under_way_is_named(tmp_path, tokenizer, capsys, monkeypatch, stage, change, when):
    """In the middle of reading, or after its sha256 was taken and before it is read, which may be hours."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(LINES)
    os.utime(path, ns=(10**18, 10**18))  # times of a file system may be coarse
    made = listed(tmp_path, "a", {"kind": "jsonl", "paths": [str(path)]})
    real = KINDS["jsonl"].records

    def lines(recipe, span):
        for number, entry in enumerate(real(recipe, span)):
            if number == 20:
                change(path)
            yield entry

    if when == "while reading":
        monkeypatch.setattr(KINDS["jsonl"], "records", lines)
    else:
        after_hashing(monkeypatch, lambda: change(path))
    output = tmp_path / "t/00000.json"
    options = {"tokenizer": tokenizer} if stage is tokenize else {"parts": 1}
    line = refused(capsys, stage, list=made, part=0, output=output, **options)
    assert f": {path} {'cannot be read' if change is Path.unlink else 'changed while it was read'}" in line
    assert not list(output.parent.iterdir())


def test_pairs_that_change_while_they_are_read_are_named(tmp_path, monkeypatch):
    path = Path(write_jsonl(tmp_path / "a.jsonl", [{"prompt": "is it?", "completion": " yes"}] * 20))
    os.utime(path, ns=(10**18, 10**18))
    made = listed(tmp_path, "a", {"kind": "prompt_completion", "paths": [str(path)]})
    after_hashing(monkeypatch, lambda: path.write_bytes(path.read_bytes().replace(b"yes", b"no!")))
    with pytest.raises(storage.UserError, match=f"^{path} changed while it was read"):
        examples.read_pairs(made)


def not_listed(directory, capsys, *paths):
    """The line with which a source of these paths is refused."""
    recipe = {"kind": "jsonl", "paths": [str(directory / path) for path in paths]}
    return refused(capsys, listing, name="a", recipe=recipe, output=directory / "list.json")


def test_a_link_to_nothing_or_in_a_circle_is_named_at_once(tmp_path, capsys):
    write_jsonl(tmp_path / "data/sub/a.jsonl", [{"text": "one"}])
    (tmp_path / "data/sub/loop").symlink_to("..")
    (tmp_path / "data/again").symlink_to("sub")
    for path in ("data", "data/**/*.jsonl", "data/**"):
        line = not_listed(tmp_path, capsys, path)
        assert line.startswith(f"list: {tmp_path / 'data/again/loop'} is a link in a circle: it leads back to a direct")
    write_jsonl(tmp_path / "texts/a.jsonl", [{"text": "one"}])
    (tmp_path / "texts/b.jsonl").symlink_to("gone.jsonl")
    for path in ("texts", "texts/*.jsonl", "texts/b.jsonl"):
        line = not_listed(tmp_path, capsys, path)
        assert line == f"list: {tmp_path / 'texts/b.jsonl'} cannot be read: it is a broken link"


@pytest.mark.parametrize("link", [Path.symlink_to, Path.hardlink_to])
def test_one_file_by_two_names_is_named(tmp_path, capsys, link):
    write_jsonl(tmp_path / "a.jsonl", [{"text": "one"}])
    link(tmp_path / "b.jsonl", tmp_path / "a.jsonl")
    both = f"{tmp_path / 'a.jsonl'} and {tmp_path / 'b.jsonl'}"
    for paths in (["*.jsonl"], ["b.jsonl", "a.*"]):
        line = not_listed(tmp_path, capsys, *paths)
        assert line == f"list: sources.a.paths must match each file once, and {both} are one file"


def test_pipes_and_devices_are_no_files(tmp_path, capsys):
    os.mkfifo(tmp_path / "a.jsonl")
    for path in (tmp_path / "a.jsonl", tmp_path / "*.jsonl", tmp_path, "/dev/null"):
        assert not_listed(tmp_path, capsys, path).startswith(f"list: sources.a.paths: {path} matches no file")


def test_names_with_spaces_quotes_and_brackets_are_read(tmp_path, tokenizer):
    names = ["a b.jsonl", 'it\'s "quoted".jsonl', "data[1].jsonl", "\u00e9\u4e2d.jsonl", "x$y;z&.jsonl", "%s{}.jsonl"]
    for name in names:
        write_jsonl(tmp_path / "texts" / name, [{"text": name}])
    part = part_of(tmp_path, tokenizer, kind="jsonl", paths=[str(tmp_path / "texts" / name) for name in names])
    assert documents_of(part) == len(names)


@pytest.mark.parametrize("name", [b"a\xff.jsonl", b"a\nb.jsonl"])
def test_a_name_that_cannot_be_printed_is_refused(tmp_path, capsys, name):
    (tmp_path / os.fsdecode(name)).write_bytes(LINES)
    line = not_listed(tmp_path, capsys, "")
    assert line.startswith("list: sources.a.paths must match files whose names are printable text, got '")


@pytest.fixture
def as_nobody():
    """A directory, and what makes a user of root: root may read everything."""
    directory = Path(tempfile.mkdtemp())
    directory.chmod(0o755)
    user = os.geteuid()

    @contextlib.contextmanager
    def nobody():
        os.seteuid(65534 if user == 0 else user)
        try:
            yield
        finally:
            os.seteuid(user)

    yield directory, nobody
    shutil.rmtree(directory)


@pytest.mark.parametrize("mode", [0, 0o444])
def test_a_directory_that_may_not_be_read_is_named(as_nobody, capsys, mode):
    directory, nobody = as_nobody
    write_jsonl(directory / "texts/a.jsonl", [{"text": "one"}])
    write_jsonl(directory / "texts/closed/b.jsonl", [{"text": "two"}])
    (directory / "texts/closed").chmod(mode)
    for path in ("texts", "texts/**/*.jsonl", "texts/*/*.jsonl"):
        with nobody():
            line = not_listed(directory, capsys, path)
        assert line == f"list: {directory / 'texts/closed'}/ must be a directory that can be read: Permission denied"
    (directory / "texts/closed").chmod(0o755)


DROP = {"duplicates": "drop"}


def test_another_manifest_than_the_right_one_is_named(tmp_path, tokenizer, capsys):
    made = lines_listed(tmp_path, ["one"])
    output = tmp_path / "t/00000.json"
    for stage, options in (
        (tokenize, {"list": tokenizer, "tokenizer": tokenizer, "part": 0}),
        (tokenize, {"list": made, "tokenizer": tokenizer, "part": 0, "recipe": DROP, "duplicates": tokenizer}),
        (hash_documents, {"list": tokenizer, "part": 0, "parts": 1}),
        (find_duplicates, {"hashes": [made]}),
        (find_candidates, {"sketches": [made]}),
        (copy_candidates, {"candidates": tokenizer, "list": made, "part": 0, "parts": 1}),
        (verify_duplicates, {"candidates": tokenizer, "copies": [made]}),
        (index, {"tokenizer": tokenizer, "parts": [made]}),
    ):
        line = refused(capsys, stage, output=output, **options)
        assert " is the manifest of stages." in line and ", expected one of stages." in line
        assert str(made if stage in (find_duplicates, find_candidates, index) else tokenizer) in line


STAGES = [listing, train_tokenizer, hash_documents, find_duplicates, sketch, find_candidates, tokenize, index]
BESIDE = {
    train_tokenizer: ["tokenizer.json", "tokenizer.model", "tokenizer_config.json"],
    find_duplicates: ["a/00000.duplicates.npy"],
    index: ["receipt.json"],
}
"""Files that a stage writes beside its manifest; others write a directory, or nothing."""


@pytest.mark.parametrize("stage", STAGES)
def test_a_full_disk_is_one_line_and_leaves_nothing_and_what_kills_left_is_cleared(tmp_path, tokenizer, capsys, stage):
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": text} for text in TEXTS * 9])
    recipe = {"kind": "jsonl", "paths": [path], "validation": 0.2}
    made = listed(tmp_path, "a", recipe)
    hashes = make(hash_documents, list=made, part=0, parts=1, output=tmp_path / "hashes/00000.json")
    sketches = make(sketch, list=made, part=0, parts=1, output=tmp_path / "sketches/00000.json")
    options = {
        listing: lambda: {"name": "a", "recipe": recipe},
        train_tokenizer: lambda: {"lists": [made], "recipe": {"vocab_size": 320, "sample": {"a": 1}}},
        sketch: lambda: {"list": made, "part": 0, "parts": 1},
        find_candidates: lambda: {"sketches": [sketches]},
        hash_documents: lambda: {"list": made, "part": 0, "parts": 1},
        find_duplicates: lambda: {"hashes": [hashes]},
        tokenize: lambda: {"list": made, "part": 0, "tokenizer": tokenizer},
        index: lambda: {"tokenizer": tokenizer, "parts": tokenized(tmp_path, "a", made, tokenizer)},
    }[stage]()
    output = tmp_path / "full/00000.json"
    with files_of_at_most(300):
        line = refused(capsys, stage, output=output, **options)
    assert line.endswith("cannot be written: File too large")
    assert not [found for found in output.parent.rglob("*") if found.is_file()]
    for file in (output.parent / name for name in (output.name, *BESIDE.get(stage, []))):
        file.parent.mkdir(exist_ok=True)
        file.with_name(f".{file.name}.abc.tmp").write_text("half")
    if stage in (hash_documents, sketch, tokenize):
        (output.parent / ".00000.abc.making").mkdir()
        (output.parent / ".00000.abc.making/half").touch()
    make(stage, output=output, **options)
    assert not list(output.parent.rglob(".*"))
