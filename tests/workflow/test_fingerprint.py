"""A fingerprint changes with the code that a stage executes, and with nothing else."""

import ast
import json
import sys

import pytest

import scripts.fingerprint
from scripts.fingerprint import fingerprints

FILES = {
    "stages/__init__.py": "",
    "stages/lib/__init__.py": "",
    "stages/a.py": "import json\nfrom stages.lib import b\n\n\ndef run():\n    return b.c(1)\n",
    "stages/lib/b.py": "from .c import c\n",
    "stages/lib/c.py": "def c(x):\n    import stages.lib.d as d\n\n    return d.D + x\n",
    "stages/lib/d.py": "D = 1\n",
    "stages/lib/unrelated.py": "E = 1\n",
}


def fingerprint(module, root):
    return fingerprints([module], root)[module]


@pytest.fixture
def root(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("name", FILES)
def test_only_a_statement_in_a_direct_or_indirect_import_changes_it(root, name):
    before = fingerprint("stages.a", root)
    (root / name).write_text(FILES[name] + "\nADDED = 1\n", encoding="utf-8")
    assert (fingerprint("stages.a", root) == before) == (name == "stages/lib/unrelated.py")


WRITTEN_OTHERWISE = (
    '"""What it does."""\nimport json\nfrom stages.lib import (  # why\n    b,\n)\n\ndef run():\n'
    '    """Run."""\n    return (b.c( 1 ))\n'
)
FIELD = "class A:\n    b: int = 1\n"


@pytest.mark.parametrize(
    ("text", "other"), [(FILES["stages/a.py"], WRITTEN_OTHERWISE), (FIELD, f'{FIELD}    """How many."""\n')]
)
def test_comments_docstrings_also_of_fields_and_layout_do_not(root, text, other):
    (root / "stages/a.py").write_text(text, encoding="utf-8")
    before = fingerprint("stages.a", root)
    (root / "stages/a.py").write_text(other, encoding="utf-8")
    assert fingerprint("stages.a", root) == before


def test_a_missing_stage_is_an_error(root):
    with pytest.raises(FileNotFoundError):
        fingerprint("stages.z", root)


@pytest.fixture
def parsed(monkeypatch):
    """The number of files that were parsed, while what is read may be kept."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    calls, parse = [], ast.parse
    monkeypatch.setattr(ast, "parse", lambda *words: calls.append(words) or parse(*words))
    return calls


def test_only_files_with_other_bytes_are_parsed_again(root, parsed):
    before = fingerprint("stages.a", root)
    assert len(parsed) == 6
    assert fingerprint("stages.a", root) == before and len(parsed) == 6
    (root / "stages/lib/d.py").write_text("D = 2\n", encoding="utf-8")
    assert fingerprint("stages.a", root) != before and len(parsed) == 7


def test_a_module_that_is_gone_is_not_kept(root, parsed):
    fingerprint("stages.a", root)
    (root / "stages/lib/c.py").write_text("c = 1\n", encoding="utf-8")
    fingerprint("stages.a", root)
    (kept,) = (root / "stages/__pycache__").iterdir()
    assert "stages.lib.c" in (names := json.loads(kept.read_text())) and "stages.lib.d" not in names


def test_a_module_that_appears_is_found_though_the_import_was_kept(root, parsed):
    (root / "stages/a.py").write_text("from stages.lib import b, new\n", encoding="utf-8")
    before = fingerprint("stages.a", root)
    (root / "stages/lib/new.py").write_text("", encoding="utf-8")
    assert fingerprint("stages.a", root) != before and len(parsed) == 7


def test_what_other_code_has_kept_is_not_used(root, parsed, monkeypatch):
    before = fingerprint("stages.a", root)
    monkeypatch.setattr(scripts.fingerprint, "OWN_CODE", b"of another version")
    assert fingerprint("stages.a", root) == before and len(parsed) == 12


def test_a_damaged_file_of_what_was_kept_is_replaced(root, parsed):
    before = fingerprint("stages.a", root)
    (kept,) = (root / "stages/__pycache__").iterdir()
    good = kept.read_bytes()
    for content in ("", "[1]", '{"stages.a": {}}', '{"stages.a": 1}', "\xff"):
        kept.write_text(content, encoding="latin-1")
        assert fingerprint("stages.a", root) == before and kept.read_bytes() == good


def test_nothing_needs_to_be_kept(root, parsed, monkeypatch):
    (root / "stages/__pycache__").write_text("no folder")
    before = fingerprint("stages.a", root)
    (root / "stages/__pycache__").unlink()
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert fingerprint("stages.a", root) == before
    assert not (root / "stages/__pycache__").exists()
