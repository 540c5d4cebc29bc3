"""Text of the Python installation: its modules, and the prose in their docstrings.

Both sources are split by module, so the docstrings of a validation module stand in no training code of its own. Many
docstrings stand in several modules, though ("Close the file."). So a docstring is prose only if it has at least six
words, and its words stand in a row in no other module.
"""

from __future__ import annotations

import ast
import inspect
import os
import sysconfig
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from stages.lib.sources.repeats import Words, repeated, words_of

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


def code(names: Iterable[str]) -> Iterator[tuple[str, str, bytes]]:
    """Yield (id, split key, text) of each module but the topics."""
    for name in names:
        if name != TOPICS:
            yield name, module_of(name), (root() / name).read_bytes()


def prose(names: Iterable[str], every_name: Iterable[str]) -> Iterator[tuple[str, str, str]]:
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


def _docstrings(name: str, text: str) -> list[Docstring]:
    """Return the docstrings of a module that have enough words; of the topics' module the topics."""
    if name == TOPICS:
        found = [(0, key, topic.strip() + "\n") for key, topic in sorted(_topics(text).items())]
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


def _topics(text: str) -> dict[str, str]:
    (topics,) = [node.value for node in nodes_of(text, (ast.Assign,))]
    return ast.literal_eval(topics)


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
