"""Which functions make a pair, and what stands in it."""

import pytest

from stages.lib.sources import documents, source, spans
from stages.lib.sources.kinds import python_source
from stages.lib.sources.prompt_completion import records
from stages.lib.sources.source import SourceRecipe
from stages.lib.sources.split import split_of

ONE = '''
class Shelf:
    @property
    def weight(self) -> float:
        """Return what all books weigh together."""
        return 1.0

    def __len__(self):
        """Return how many books there are."""

    def lift(self, book, *, hand="left"):
        """Lift a book from the shelf.

        More is said here.
        """

    def wrapped(self, title):
        """Say in more than one line what
        this function does."""

    def short(self, x):
        """Too short."""

    def call(self, a, b):
        """call(a, b): do as is said."""

    def arrow(self, items):
        """Map items to their names -> list."""

    def silent(self):
        return None

    def twice_in_one(self, first):
        """Say this line two times here."""

    def again_in_one(self, second):
        """Say this line two times here."""


async def wait_for(
    seconds=1,
):
    r"""Wait for as long as one is told."""
'''
TWO = '''
def close(self, mode):
    """Close all that is open here."""


def shared(line):
    """Stand as a line in two modules."""


def quoted(line):
    """Stand in the text of another module."""
'''
THREE = '''
def close(self, mode):
    return mode


def divided(line):
    """Stand as a line in two modules."""


# Stand in the text of another module: so it is said here, too.
'''


@pytest.fixture(autouse=True)
def library(tmp_path, monkeypatch):
    """A standard library of three modules."""
    for name, text in {"one": ONE, "two": TWO, "three": THREE, "broken": "def (:\n"}.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.setattr(python_source, "root", lambda: tmp_path)


def made(**recipe):
    """All pairs of the library."""
    plan = SourceRecipe(kind="python-docstrings", **recipe)
    return list(records(plan, source.list_files("box", plan)))


def test_a_pair_is_a_header_on_one_line_and_a_summary_line():
    assert {pair.prompt: pair.completion for pair in made()} == {
        'def weight(self) -> float:\n    """': "Return what all books weigh together.",
        'def lift(self, book, *, hand=\'left\'):\n    """': "Lift a book from the shelf.",
        'async def wait_for(seconds=1):\n    """': "Wait for as long as one is told.",
    }


def test_ids_name_the_file_and_the_line_of_the_function():
    assert [pair.id for pair in made()] == ["one.py:4", "one.py:11", "one.py:40"]


def test_functions_and_code_of_a_module_are_in_the_same_split():
    plan = SourceRecipe(kind="python-code", validation=0.5)
    names = ["one.py", "three.py", "two.py"]
    code = {found.id: found.split for found in documents.read(plan, spans.whole(names), names)}
    assert {pair.split for pair in made(validation=0.5)} == {code["one.py"]} == {split_of("one", 0.5)}
