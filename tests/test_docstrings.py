"""Docstrings begin as CONTRIBUTING.md has it: with a noun, or a verb in the imperative."""

import ast
import re
from pathlib import Path

import pytest

HOME = Path(__file__).resolve().parents[1]
QUESTION = re.compile(r"(What|Whether|Which|How|Who|Where|Why)\b")


def docstrings(path):
    """The strings of a file that are statements: docstrings, and those under fields and constants."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value.strip()


@pytest.mark.parametrize("folder", ["stages", "tools", "workflow", "profiles", "benchmarks", "tests"])
def test_no_docstring_begins_with_a_question_word(folder):
    every = [(path, text) for path in (HOME / folder).rglob("*.py") for text in docstrings(path)]
    assert every
    assert [f"{path}: {text[:60]}" for path, text in every if QUESTION.match(text)] == []
