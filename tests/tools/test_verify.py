"""Files are held against their manifests: one bit is enough."""

import json
import shutil

import pytest

from tests.helpers.training import milestone
from tools.verify import __main__ as verify


@pytest.fixture
def made(corpus, uninterrupted, tmp_path):
    """Copies of a corpus and of a milestone: their manifests."""
    shutil.copytree(corpus.parents[1], tmp_path / "tokens")
    shutil.copytree(uninterrupted, tmp_path / "run")
    return [tmp_path / "tokens/main/manifest.json", milestone(tmp_path / "run", 30)]


def test_whole_files_are_counted(made, capsys):
    assert verify.main(list(map(str, made))) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{made[0]}: 7 of 7 files are whole, ")  # 3 per source, bytes of ids
    assert second.startswith(f"{made[1]}: 3 of 3 files are whole, ")


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_shard_that_differs_is_named(made, capsys):
    (described,) = json.loads(made[0].read_text())["identity"]["sources"]["a"]["train"]["shards"]
    path = made[0].parent / described["path"]
    for spoil, reason in (
        (flip, "changed since"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "has"),
        (lambda path: path.unlink(), "is missing"),
    ):
        spoil(path)
        assert verify.main(list(map(str, made))) == 2
        told = capsys.readouterr()
        assert told.out.startswith(f"WRONG {path} {reason}")
        assert ": 6 of 7 files are whole" in told.out and ": 3 of 3 files are whole" in told.out
        assert told.err == "verify: 1 files differ from their manifests\n"


def test_files_of_a_trained_tokenizer_that_differ_are_named(corpus, tmp_path, capsys):
    made = shutil.copytree(corpus.parents[2] / "tokenizers/main", tmp_path / "main") / "manifest.json"
    names = ("tokenizer.model", "tokenizer.json", "tokenizer_config.json")
    for name in names:
        flip(made.parent / name)
    assert verify.main([str(made)]) == 2
    out = capsys.readouterr().out
    assert all(f"WRONG {made.parent / name} changed since " in out for name in names) and ": 0 of 3 files are" in out


def test_file_that_is_no_manifest_or_names_no_files_is_refused(corpus, tmp_path, capsys):
    (tmp_path / "x.json").write_text("{}")
    assert verify.main([str(tmp_path / "x.json")]) == 2
    assert "x.json must be a manifest" in capsys.readouterr().err
    path = corpus.parents[2] / "sources/a/list.json"
    assert verify.main([str(path)]) == 2
    assert capsys.readouterr().err == f"verify: {path} names no files: it must be a manifest with files\n"
