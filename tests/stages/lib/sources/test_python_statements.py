"""Statements that make a pair, and the sentences about them."""

import ast

import pytest

from stages.lib.sources import documents, source, spans
from stages.lib.sources.entries import split_of
from stages.lib.sources.examples import pairs
from stages.lib.sources.kinds import python_kinds
from stages.lib.sources.source import SourceRecipe

ONE = (
    '''
class Shelf:
    def weigh(self):
        """Return the weight of all books."""
        total = 0
        return sum(
            self.books
        )

    def lift(self, book):
        self.hand = book  # as it is

    def twice(self):
        return self.left

    def loop(self):
        for book in self.books:
            print(book)

    def later(self):
        def inner(lid):
            raise KeyError(lid)
        return inner

    def long(self):
        return "'''
    + 80 * "x"
    + """"

    def nothing(self):
        pass
"""
)
TWO = """
def twice(self):
    print(self)
    return self.left

def other(self):
    self.sizes[0] = (1, 2)
"""


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A standard library of three modules."""
    for name, text in {"one": ONE, "two": TWO, "broken": "def (:\n"}.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.setattr(python_kinds, "root", lambda: tmp_path)


def made(**recipe):
    """All pairs of the library."""
    plan = SourceRecipe(kind="python-statements", **recipe)
    return list(pairs(plan, source.list_files("box", plan)))


def test_a_pair_is_the_last_statement_of_a_function_and_what_it_does(library):
    assert [(pair.id, pair.prompt, pair.completion) for pair in made()] == [
        ("one.py:6", "return sum(self.books)  #", " returns the result of a function"),
        ("one.py:11", "self.hand = book  #", " sets an attribute to a variable"),
        ("one.py:22", "raise KeyError(lid)  #", " raises the result of a function"),
        ("one.py:23", "return inner  #", " returns a variable"),
        ("two.py:7", "self.sizes[0] = (1, 2)  #", " sets an item to a tuple"),
    ]


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("a.b(c())", "calls a method"),
        ("f(x)(y)", "calls a function"),
        ("x, y = z", "sets several variables to a variable"),
        ("x += 1", "changes a variable by a constant"),
        ("x.y[0] = {1: 2}", "sets an item to a dictionary"),
        ("return not x", "returns a calculation"),
        ("return x and y", "returns a condition"),
        ("return x in y", "returns a comparison"),
        ("return {x for x in y}", "returns a comprehension"),
        ("return *x, y", "returns a tuple"),
        ("return (x := y)", "returns a value"),
        ("return f'{x}'", "returns a string"),
        ("return", None),
        ("raise", None),
        ("x = y = 1", None),
        ("'text'", None),
        ("del x", None),
    ],
)
def test_what_a_statement_does(statement, words):
    (node,) = ast.parse(statement).body
    assert python_kinds.described(node) == words


def test_statements_and_code_of_a_module_are_in_the_same_split(library):
    plan = SourceRecipe(kind="python-code", validation=0.5)
    names = ["one.py", "two.py"]
    code = {found.id: found.split for found in documents.read(plan, spans.whole(names), names)}
    assert {pair.split for pair in made(validation=0.5) if pair.id.startswith("one")} == {code["one.py"]}
    assert code["one.py"] == split_of("one", 0.5)


@pytest.mark.long
def test_no_statement_of_the_validation_split_stands_in_training_pairs():
    found = made(validation=0.15)
    training, validation = ({p.prompt for p in found if p.split == split} for split in ("train", "validation"))
    assert len(training) > 3000 and len(validation) > 500
    assert not training & validation
