"""The kinds `python-*`, whose files are the modules of the Python installation: its code, and the prose in docstrings.

All are split by module, so the docstrings of a validation module stand in no training code of its own. Many docstrings
stand in several modules, though ("Close the file."). So a docstring is prose only if it has at least six words, and its
words stand in a row in no other module.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
import sysconfig
import warnings
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from stages.lib.sources import storage
from stages.lib.sources.entries import Document, Malformed
from stages.lib.sources.kinds.kind import SourceFields, SourceKind, document_of_text
from stages.lib.sources.spans import Span
from stages.lib.sources.storage import Status

MAX_CHARACTERS = 80

VALUES: dict[type[ast.AST], str] = {
    ast.Name: "a variable",
    ast.Attribute: "an attribute",
    ast.Subscript: "an item",
    ast.Constant: "a constant",
    ast.JoinedStr: "a string",
    ast.List: "a list",
    ast.Tuple: "a tuple",
    ast.Dict: "a dictionary",
    ast.Set: "a set",
    ast.ListComp: "a comprehension",
    ast.SetComp: "a comprehension",
    ast.DictComp: "a comprehension",
    ast.GeneratorExp: "a comprehension",
    ast.BinOp: "a calculation",
    ast.UnaryOp: "a calculation",
    ast.Compare: "a comparison",
    ast.BoolOp: "a condition",
    ast.IfExp: "one of two values",
    ast.Lambda: "a function",
    ast.Await: "an awaited value",
    ast.Yield: "a yielded value",
}


def _last_statements(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield (line, statement, what it does) of each function whose last statement is a simple one, in order."""
    functions = nodes_of(text, FUNCTIONS)
    for statement in sorted((function.body[-1] for function in functions), key=lambda node: node.lineno):
        words, written = described(statement), ast.unparse(statement)
        if words is not None and len(written) <= MAX_CHARACTERS and "\n" not in written:
            yield statement.lineno, written, words


def described(statement: ast.stmt) -> str | None:
    """Return what a statement does; None if it is none of those that pairs are made of."""
    match statement:
        case ast.Return(value=ast.AST() as value):
            return f"returns {_value(value)}"
        case ast.Raise(exc=ast.AST() as value):
            return f"raises {_value(value)}"
        case ast.Expr(value=ast.Call() as call):
            return f"calls {_callable(call)}"
        case ast.Assign(targets=[target], value=value):
            return f"sets {_target(target)} to {_value(value)}"
        case ast.AugAssign(target=target, value=value):
            return f"changes {_target(target)} by {_value(value)}"
        case _:
            return None


def _target(node: ast.expr) -> str:
    return "several variables" if isinstance(node, (ast.Tuple, ast.List)) else _value(node)


def _value(node: ast.expr) -> str:
    return f"the result of {_callable(node)}" if isinstance(node, ast.Call) else VALUES.get(type(node), "a value")


def _callable(call: ast.Call) -> str:
    return "a method" if isinstance(call.func, ast.Attribute) else "a function"


Words = tuple[str, ...]


def words_of(text: str) -> Words:
    """Return the words of a text; line ends, spaces and punctuation do not count."""
    return tuple(re.findall(r"\w+", text))


def repeated(
    owners: Mapping[Words, Collection[Hashable]], places: Iterable[tuple[Hashable, Words]], opening: int
) -> set[Words]:
    """Return the word sequences that belong to several places, or stand in a row in the words of another place.

    `owners`: {sequence: the places that it belongs to}. `places`: (place, words) of all text that is searched.
    `opening`: the number of first words by which a sequence is looked up; each sequence must have as many.
    """
    by_opening = defaultdict(list)
    for sequence in owners:
        by_opening[sequence[:opening]].append(sequence)
    found = {sequence for sequence, its_places in owners.items() if len(its_places) > 1}
    for place, words in places:
        for start in range(len(words) - opening + 1):
            for sequence in by_opening.get(words[start : start + opening], ()):
                if (
                    sequence not in found
                    and place not in owners[sequence]
                    and words[start : start + len(sequence)] == sequence
                ):
                    found.add(sequence)
    return found


Docstring = tuple[int, str, str]  # first line, owner, cleaned text
Place = tuple[str, str | None]  # module, topic

EXCLUDED_DIRECTORIES = {
    "site-packages",
    "dist-packages",
    "test",
    "tests",
    "idlelib",
    "lib-dynload",
    "_bundled",
    "encodings",
    "__pycache__",
}
TOPICS = "pydoc_data/topics.py"  # the language reference as one dictionary: prose, not code
WORDS = 6
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def root() -> Path:
    """Return the directory of the standard library."""
    return Path(sysconfig.get_path("stdlib"))


def modules() -> list[str]:
    """Return the standard library's modules as paths relative to `root()`, sorted."""
    names: list[str] = []
    for directory, folders, files in os.walk(root()):
        folders[:] = [folder for folder in folders if folder not in EXCLUDED_DIRECTORIES]
        names += [Path(directory, file).relative_to(root()).as_posix() for file in files if file.endswith(".py")]
    return sorted(name for name in names if not Path(name).name.startswith("_sysconfigdata"))


def module_of(name: str) -> str:
    """Return the dotted name of a module's file: the split key of every Python source."""
    return name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def read(name: str) -> str:
    """Return the text of a module."""
    return (root() / name).read_bytes().decode("utf-8", errors="replace")


def nodes_of(text: str, types: tuple[type, ...]) -> list[Any]:
    """Return the nodes of some types in a module's tree; [] if this Python cannot parse it (templates of lib2to3)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in old modules
        try:
            tree = ast.parse(text)
        except SyntaxError:
            return []
    return [node for node in ast.walk(tree) if isinstance(node, types)]


def _docstrings(name: str, text: str) -> list[Docstring]:
    """Return the docstrings of a module that have enough words; of the topics' module the topics."""
    if name == TOPICS:
        (topics,) = [node.value for node in nodes_of(text, (ast.Assign,))]
        found = [(0, key, topic.strip() + "\n") for key, topic in sorted(ast.literal_eval(topics).items())]
    else:
        nodes = nodes_of(text, (ast.Module, ast.ClassDef, *FUNCTIONS))
        raw = [(node, ast.get_docstring(node, clean=False)) for node in nodes]
        found = [
            (node.body[0].lineno, getattr(node, "name", name), inspect.cleandoc(docstring))
            for node, docstring in raw
            if docstring
        ]
        found.sort(key=lambda item: item[0])
    return [item for item in found if len(words_of(item[2])) >= WORDS]


def _owners(found: Mapping[str, Sequence[Docstring]]) -> dict[Words, set[Place]]:
    """Return {words of a docstring: the places that it belongs to}; a topic is a place of its own."""
    owners: defaultdict[Words, set[Place]] = defaultdict(set)
    for name, docstrings in found.items():
        for _, owner, text in docstrings:
            owners[words_of(text)].add((name, owner if name == TOPICS else None))
    return owners


def _places(found: Mapping[str, Sequence[Docstring]], texts: Mapping[str, str]) -> Iterator[tuple[Place, Words]]:
    """Yield (place, words) of all text in which a docstring may stand."""
    for name, text in texts.items():
        if name != TOPICS:
            yield (name, None), words_of(text)
    for _, topic, text in found.get(TOPICS, ()):
        yield (TOPICS, topic), words_of(text)


class StandardLibraryKind(SourceKind):
    """A kind without paths. Documents are split by module."""

    needs_paths = False

    def root(self) -> Path:
        """Return the directory of the standard library."""
        return root()

    def own_files(self) -> dict[str, Status]:
        """Return {module file: Status}, sorted."""
        return {name: storage.status(root() / name) for name in modules()}

    def texts(self, names: Sequence[str], every_name: Sequence[str]) -> Iterator[tuple[str, str, str | bytes]]:
        """Yield (id, split key, text) of the documents of the modules `names`."""
        raise NotImplementedError(self.name)

    def documents(
        self, recipe: SourceFields, chosen: Sequence[Span], every_name: Sequence[str], before: Mapping[str, Status]
    ) -> Iterator[Document | Malformed]:
        """Yield the documents of the modules `chosen`; no module changes while it is read."""
        for identifier, key, text in self.texts([span.name for span in chosen], every_name):
            yield document_of_text(recipe, identifier, text, key)


class PythonCode(StandardLibraryKind):
    """A document is a module."""

    name = "python-code"

    def texts(self, names: Sequence[str], every_name: Sequence[str]) -> Iterator[tuple[str, str, bytes]]:
        """Yield (id, split key, text) of each module but the topics."""
        for name in names:
            if name != TOPICS:
                yield name, module_of(name), (root() / name).read_bytes()


class PythonProse(StandardLibraryKind):
    """A document is the docstrings of a module. A docstring that stands in several modules is excluded."""

    name = "python-prose"
    needs_every_file = True

    def texts(self, names: Sequence[str], every_name: Sequence[str]) -> Iterator[tuple[str, str, str]]:
        """Yield (id, split key, text) of each module that has prose, its docstrings in order; and of each topic.

        `every_name`: all modules; a docstring that stands in two of them is excluded.
        """
        texts = {name: read(name) for name in every_name}
        found = {name: _docstrings(name, text) for name, text in texts.items()}
        elsewhere = repeated(_owners(found), _places(found, texts), WORDS)
        for name in names:
            unique = [(owner, text) for _, owner, text in found[name] if words_of(text) not in elsewhere]
            if name == TOPICS:
                for topic, text in unique:
                    yield f"{name}:{topic}", f"{module_of(name)}:{topic}", text
            elif unique:
                yield name, module_of(name), "\n\n".join(text for _, text in unique) + "\n"


class PythonStatements(StandardLibraryKind):
    """A prompt is a statement, its completion says what it does."""

    name = "python-statements"
    fields = ("filters",)
    needs_every_file = True
    yields = ("pairs",)

    def pairs(self, recipe: SourceFields, names: Sequence[str]) -> Iterator[tuple[str, str, str, str]]:
        """Yield (id, split key, prompt, completion) of each function of the modules `names` that makes a pair.

        `names`: all modules; a statement that stands in several functions makes no pair.
        """
        found = {name: list(_last_statements(read(name))) for name in names}
        counts = Counter(text for statements in found.values() for _, text, _ in statements)
        for name, statements in found.items():
            for line, text, words in statements:
                if counts[text] == 1:
                    yield f"{name}:{line}", module_of(name), f"{text}  #", f" {words}"
