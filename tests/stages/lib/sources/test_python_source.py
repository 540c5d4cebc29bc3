"""Docstrings that are prose: those whose words occur in no other module."""

import pytest

from stages.lib.errors import UserError
from stages.lib.sources import documents, entries, source, spans
from stages.lib.sources.kinds import python_kinds
from stages.lib.sources.source import SourceRecipe

ONE = "Words that stand in this one module and in no other."
TWICE = "Close the file and release all that it holds."
TOPICS = {
    "a": "A topic is as long as a page, at times.",
    "b": "Another topic says it again: A topic is as long as a page, at times.",
    "c": "The topic c stands on its own feet, and is said once.",
}


@pytest.fixture(autouse=True)
def library(tmp_path, monkeypatch):
    """A standard library of a few modules."""
    modules = {
        "one.py": f'"""{ONE}"""\n\n\ndef close():\n    """{TWICE}"""\n',
        "two.py": f'def close():\n    """{TWICE.replace(" file", chr(10) + "    file")}"""\n',
        "quoted.py": '"""Only said here, but said again by the module after it."""\n',
        "quoting.py": "# Only said here, but said again by the module after it.\n",
        "short.py": '"""Too few words."""\n',
        "package/__init__.py": '"""This package is one of its own, with seven words."""\n',
        "broken.py": "def (:\n",
        "latin.py": b"# coding: latin-1\nx = '\xe9'\n",
        "pydoc_data/topics.py": f"topics = {TOPICS!r}\n",
        "test/test_one.py": '"""A test of the library is no text of this source."""\n',
        "site-packages/other.py": '"""What was installed is no text of this source."""\n',
    }
    for name, text in modules.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    monkeypatch.setattr(python_kinds, "root", lambda: tmp_path)
    return tmp_path


def documents_of(kind):
    recipe = SourceRecipe(kind=kind)
    names = source.list_files("box", recipe)
    return list(documents.read(recipe, spans.whole(names), names))


def texts(kind):
    return {found.id: found.text for found in documents_of(kind) if isinstance(found, documents.Document)}


def test_modules_are_sorted_without_tests_and_installed_packages():
    expected = ["broken", "latin", "one", "package/__init__", "pydoc_data/topics", "quoted", "quoting", "short", "two"]
    assert python_kinds.modules() == [f"{name}.py" for name in expected]


def test_prose_is_what_stands_in_no_other_module():
    assert texts("python-prose") == {
        "one.py": ONE + "\n",
        "package/__init__.py": "This package is one of its own, with seven words.\n",
        "pydoc_data/topics.py:b": TOPICS["b"] + "\n",
        "pydoc_data/topics.py:c": TOPICS["c"] + "\n",
    }


def test_a_part_of_the_modules_has_the_prose_that_it_has_among_all():
    recipe = SourceRecipe(kind="python-prose")
    names = python_kinds.modules()
    apart = [found for name in names for found in documents.read(recipe, spans.whole([name]), names)]
    assert apart == documents_of("python-prose")


def test_code_is_whole_modules_without_the_topics(library):
    code = texts("python-code")
    assert code["two.py"] == (library / "two.py").read_text()
    assert "pydoc_data/topics.py" not in code
    malformed = [found for found in documents_of("python-code") if isinstance(found, entries.Malformed)]
    assert malformed == [entries.Malformed("latin.py", "not UTF-8")]


def test_a_python_source_has_no_paths():
    with pytest.raises(UserError, match="sources.box.paths must be left out"):
        SourceRecipe(kind="python-code", paths=["a"]).check("sources.box")
