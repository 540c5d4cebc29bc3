"""Sources of the Hugging Face Hub: what is listed is what is read, and what cannot be read is one sentence."""

import gzip
import hashlib
import json
import os
import subprocess
import sys

import pytest

from stages import list as listing
from stages import tokenize
from stages.lib.sources import storage
from tests.helpers import hub_server
from tests.helpers.data_fixtures import listed, parquet_of, refused, tokenized
from tests.helpers.manifests import identity_of, names_of, record_of, shards_of
from tests.stages.test_remote_sources import LINES, RECIPE, ROWS, plain

__all__ = ["plain"]

HALF = LINES.index(b"\n", len(LINES) // 2) + 1
DATA = "hf://datasets/team/texts"


FILES = {
    "README.md": b"what this is",
    "plain/a.jsonl": LINES,
    "compressed/deep/a.jsonl.gz": gzip.compress(LINES[:HALF]) + gzip.compress(LINES[HALF:]),
    "halves/0.jsonl": LINES[:HALF],
    "halves/1.jsonl.gz": gzip.compress(LINES[HALF:]),
    "rows/a.parquet": parquet_of(ROWS, row_group_size=9),
    **{f"many/{number:02d}.jsonl": b'{"text": "one"}\n' for number in range(11)},
}


def _forget():
    import fsspec

    storage._file_system.cache_clear()
    fsspec.get_filesystem_class("hf").clear_instance_cache()


@pytest.fixture
def hub(monkeypatch):
    """A hub with a repository. (HF_ENDPOINT is read when the library is imported: the last test starts processes.)"""
    import fsspec
    from huggingface_hub import constants  # not above: what it reads when it is imported holds for all tests

    for name in ("HF_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    # other stages say in this process that all is local, and the library asks once, when it is imported
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with hub_server.running() as running:
        running.repositories["team/texts"] = hub_server.Repository()
        running.repositories["team/texts"].commit(FILES)
        monkeypatch.setitem(fsspec.config.conf, "hf", {"endpoint": running.address})
        _forget()
        yield running
    _forget()


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("jsonl", "/plain/a.jsonl"),
        ("jsonl", "/plain"),
        ("jsonl", "@main/plain/*.jsonl"),
        ("jsonl", "/compressed/**/*.gz"),
        ("jsonl", "/compressed/deep"),
        ("jsonl", "/halves/*"),
        ("parquet", "/rows/a.parquet"),
        ("parquet", ""),
    ],
)
def test_a_data_set_gives_the_shards_that_a_local_file_gives(tmp_path, hub, plain, kind, path):
    source = listed(tmp_path, "a", RECIPE | {"kind": kind, "paths": [DATA + path]})
    (part,) = tokenized(tmp_path, "a", source, plain[0])
    assert shards_of(part) == plain[1]


def test_the_mark_of_a_file_is_the_hash_of_what_it_holds(tmp_path, hub, plain):
    source = listed(tmp_path, "a", RECIPE | {"paths": [f"{DATA}/plain/*", f"{DATA}/many/00.jsonl"]})
    assert record_of(source)["etags"] == {
        f"{DATA}/many/00.jsonl": hashlib.sha1(FILES["many/00.jsonl"]).hexdigest(),
        f"{DATA}/plain/a.jsonl": hashlib.sha256(LINES).hexdigest(),  # a large one lies in LFS
    }
    (part,) = tokenized(tmp_path, "a", source, plain[0])
    assert [set(entry) for entry in identity_of(part)["inputs"]] == [{"name", "bytes", "etag"}] * 2
    hub.repositories["team/texts"].commit(FILES | {"README.md": b"what this is, with more words"})
    assert listed(tmp_path, "a", identity_of(source)["recipe"]).read_bytes() == source.read_bytes()


def test_a_long_listing_comes_in_pages_and_once_for_all_files_of_a_directory(tmp_path, hub, plain):
    for path in ("/many", "/many/*.jsonl", "@main/many/**"):
        source = listed(tmp_path, "a", RECIPE | {"paths": [DATA + path]})
        root = DATA + "@main" * path.startswith("@main")
        assert names_of(source) == [f"{root}/many/{number:02d}.jsonl" for number in range(11)]
    source = listed(tmp_path, "a", RECIPE | {"paths": [f"{DATA}/many"]})
    hub.asked.clear()
    _forget()
    tokenized(tmp_path, "a", source, plain[0])
    listings = [path for _, path in hub.asked if "/tree/" in path]
    assert 1 <= len(listings) <= 4  # pages of one listing


OTHER = {"plain/a.jsonl": LINES.replace(b"a", b"o")}  # of the same size


@pytest.mark.parametrize(
    ("kind", "path", "requests", "change", "said"),
    [
        ("jsonl", "plain/a.jsonl", 0, OTHER, "changed after {source} was written"),
        ("jsonl", "plain/a.jsonl", 3, OTHER, "changed while it was read"),
        *(
            ("jsonl", path, 2, None, "cannot be read: Entry")
            for path in ("plain/a.jsonl", "compressed/deep/a.jsonl.gz")
        ),
        ("parquet", "rows/a.parquet", 1, None, "cannot be read: Entry not found"),  # a small one is read with its end
    ],
)
def test_a_branch_that_moves_on_before_or_while_a_file_is_read_is_noticed(
    tmp_path, hub, plain, capsys, monkeypatch, kind, path, requests, change, said
):
    monkeypatch.setattr(storage, "BLOCK_BYTES", 4000)  # a file is asked for in many pieces
    monkeypatch.setattr(storage, "BUFFER_BYTES", 1000)
    source = listed(tmp_path, "a", RECIPE | {"kind": kind, "paths": [f"{DATA}/{path}"]})
    seen = []

    def move(_=None):
        if len(seen) == requests:
            hub.repositories["team/texts"].commit(FILES | change if change else {"README.md": b"all is gone"})
        seen.append(1)

    move()  # before the first request
    hub.before_answer = move
    line = refused(capsys, tokenize, list=source, tokenizer=plain[0], part=0, output=tmp_path / "t/00000.json")
    assert line.startswith(f"tokenize: {DATA}/{path} {said.format(source=source)}")
    assert not list(tmp_path.glob("t/*"))


def test_a_commit_in_the_url_is_read_whatever_becomes_of_the_branch(tmp_path, hub, plain):
    commit = hub.repositories["team/texts"].branches["main"]
    source = listed(tmp_path, "a", RECIPE | {"paths": [f"{DATA}@{commit}/plain/*.jsonl"]})
    assert names_of(source) == [f"{DATA}@{commit}/plain/a.jsonl"]
    hub.repositories["team/texts"].commit({"README.md": b"all is gone"})
    (part,) = tokenized(tmp_path, "a", source, plain[0])
    assert shards_of(part) == plain[1]


@pytest.mark.parametrize(("kind", "path"), [("jsonl", "plain/a.jsonl"), ("parquet", "rows/a.parquet")])
def test_a_file_of_fewer_bytes_than_the_hub_lists_is_named(tmp_path, hub, plain, capsys, kind, path):
    """It ends behind a whole line: nothing in the lines themselves would show it."""
    source = listed(tmp_path, "a", RECIPE | {"kind": kind, "paths": [f"{DATA}/{path}"]})
    hub.held = HALF
    line = refused(capsys, tokenize, list=source, tokenizer=plain[0], part=0, output=tmp_path / "t/00000.json")
    assert line.startswith(f"tokenize: {DATA}/{path} must have {len(FILES[path])} bytes, and ends after ")


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("hf://datasets/team/none/a.jsonl", "cannot be read: datasets/team/none/a.jsonl (repository not found). If"),
        ("hf://datasets/team/none/*.jsonl", "cannot be read: datasets/team/none/*.jsonl (repository not found). If"),
        (f"{DATA}@v7/plain", "cannot be read: datasets/team/texts@v7/plain (revision not found)"),
        (f"{DATA}/none.jsonl", f"sources.a.paths: {DATA}/none.jsonl matches no file"),
        (f"{DATA}/none/*.jsonl", f"sources.a.paths: {DATA}/none/*.jsonl matches no file"),
    ],
)
def test_what_is_not_there_is_one_sentence(tmp_path, hub, capsys, address, said):
    line = refused(capsys, listing, name="a", recipe=RECIPE | {"paths": [address]}, output=tmp_path / "list.json")
    assert line.startswith(f"list: {address} {said}" if said.startswith("cannot") else f"list: {said}")


def test_a_gated_data_set_is_listed_and_read_with_a_token_alone(tmp_path, hub, plain, capsys, monkeypatch):
    hub.repositories["team/texts"].gated = True
    source = listed(tmp_path, "a", RECIPE | {"paths": [f"{DATA}/plain"]})
    line = refused(capsys, tokenize, list=source, tokenizer=plain[0], part=0, output=tmp_path / "t/00000.json")
    assert line == (
        f"tokenize: {DATA}/plain/a.jsonl cannot be read: Access to dataset team/texts is restricted. You must have "
        "access to it and be authenticated to access it. Please log in."
    )
    monkeypatch.setenv("HF_TOKEN", hub.token)
    (part,) = tokenized(tmp_path, "a", source, plain[0])
    assert shards_of(part) == plain[1]
    assert hub.token not in source.read_text() + part.read_text()


def test_a_hub_that_cannot_be_reached_or_asked_is_one_sentence(tmp_path, hub):
    recipe = json.dumps(RECIPE | {"paths": [f"{DATA}/plain"]})
    command = [sys.executable, "-m", "stages.list", "--name", "a", "--recipe", recipe, "--output", tmp_path / "a.json"]
    for variables, said in (
        ({"HF_ENDPOINT": hub.address, "HF_HUB_OFFLINE": "1"}, f"Cannot reach {hub.address}"),
        ({"HF_ENDPOINT": "http://127.0.0.1:9"}, "[Errno 111] Connection refused"),
    ):
        environment = os.environ | variables
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
        assert ended.returncode == 2
        (line,) = ended.stderr.splitlines()
        assert line.startswith(f"list: {DATA}/plain cannot be read: {said}")
    subprocess.run(command, env=os.environ | {"HF_ENDPOINT": hub.address}, check=True, timeout=60)
    assert names_of(tmp_path / "a.json") == [f"{DATA}/plain/a.jsonl"]
