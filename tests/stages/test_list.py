"""The list of a source: what it holds, when it changes, and what is refused."""

import json
import os

import pytest

from stages import list as listing
from tests.helpers.data_fixtures import listed, refused
from tests.helpers.manifests import identity_of


@pytest.fixture(autouse=True)
def texts(tmp_path, monkeypatch):
    """The working directory, with three files of text in it."""
    monkeypatch.chdir(tmp_path)
    for name in ("b/two.txt", "a/one.txt", "a/deep/er/three.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "b/x.zip").touch()
    return tmp_path


def test_files_are_sorted_each_once_whatever_the_globs(texts):
    path = listed(texts, "mine", {"kind": "text", "paths": ["b/*.txt", "**/*.txt", "./a/one.txt"]})
    assert identity_of(path)["files"] == [
        {"name": "a/deep/er/three.txt", "bytes": 19},
        {"name": "a/one.txt", "bytes": 9},
        {"name": "b/two.txt", "bytes": 9},
    ]
    path = listed(texts, "mine", {"kind": "text", "paths": [f"file://{texts}/a/one.txt"]})
    assert identity_of(path)["files"] == [{"name": f"{texts}/a/one.txt", "bytes": 9}]


def test_an_unchanged_source_gives_the_same_bytes_and_a_touched_one_the_same_identity(texts):
    recipe = {"kind": "text", "paths": ["**/*.txt"]}
    first = listed(texts, "mine", recipe | {"validation": 0.01}).read_bytes()  # the default, which is not written
    assert listed(texts, "mine", recipe).read_bytes() == first
    os.utime(texts / "a/one.txt", ns=(1, 1))
    touched = listed(texts, "mine", recipe).read_bytes()
    assert touched != first
    assert json.loads(touched)["identity"] == json.loads(first)["identity"]
    assert json.loads(first)["identity"]["recipe"] == recipe


def test_sources_of_pairs_are_listed_like_those_of_text(texts):
    path = listed(texts, "mine", {"kind": "prompt_completion", "paths": ["a/*.txt"], "completion_field": "answer"})
    assert identity_of(path)["files"] == [{"name": "a/one.txt", "bytes": 9}]
    boxed = [
        json.loads(listed(texts, kind, {"kind": kind}).read_text())["identity"]["files"]
        for kind in ("python-statements", "python-code")
    ]
    assert boxed[0] == boxed[1]


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        ({"kind": "text", "paths": ["a/*.txt", "c/*.txt"]}, "sources.mine.paths: c/*.txt"),
        ({"kind": "text", "paths": ["c"]}, "sources.mine.paths: c matches no file"),
        ({"kind": "text"}, "list.paths must name at least one file or glob"),
        ({"kind": "python-code", "paths": ["a/*"]}, "list.paths must be left out for the kind python-code"),
        (
            {"kind": "text", "paths": ["a/*"], "filters": {"min_words": 9, "max_words": 3}},
            "list.filters.min_words must be at most list.filters.max_words (3), got 9",
        ),
        ({"kind": "text", "paths": ["a/*"], "split_field": "x"}, "list.split_field must be left out for the kind text"),
        ({"kind": "jsonl", "paths": ["a/*"], "prompt_field": "x"}, "list.prompt_field must be left out for the kind"),
        ({"kind": "text", "paths": ["**"]}, "sources.mine.paths must match files of the kind text, got b/x.zip"),
    ],
)
def test_a_mistake_is_one_sentence_and_writes_nothing(texts, capsys, recipe, said):
    line = refused(capsys, listing, name="mine", recipe=recipe, output=texts / "out" / "list.json")
    assert line.startswith(f"list: {said}")
    assert not (texts / "out").exists()
