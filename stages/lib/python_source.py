"""The text in the box: the modules of the Python installation, and the prose in their docstrings.

Both sources are split by module, so the docstrings of a held-out module stand in no training code of its own. Many
docstrings stand in several modules, though ("Close the file."). So a docstring is prose only when it has at least six
words, and its words stand in a row in no other module.
"""

import ast
import inspect
import os
import re
import sysconfig
import warnings
from collections import defaultdict
from pathlib import Path

LEFT_OUT = {
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


def root():
    """The directory of the standard library."""
    return Path(sysconfig.get_path("stdlib"))


def modules():
    """The names of the standard library's modules as paths relative to `root()`, sorted."""
    names = []
    for directory, folders, files in os.walk(root()):
        folders[:] = [folder for folder in folders if folder not in LEFT_OUT]
        names += [Path(directory, file).relative_to(root()).as_posix() for file in files if file.endswith(".py")]
    return sorted(name for name in names if not Path(name).name.startswith("_sysconfigdata"))


def code(names):
    """Yield (id, split key, text) for each module but the topics."""
    for name in names:
        if name != TOPICS:
            yield name, _module(name), (root() / name).read_bytes()


def prose(names, every_name):
    """Yield (id, split key, text) for each module that has prose: its docstrings in order; and for each topic.

    `every_name`: all modules, in which a docstring is looked for before it counts.
    """
    texts = {name: _read(name) for name in every_name}
    found = {name: _docstrings(name, text) for name, text in texts.items()}
    repeated = _repeated(found, texts)
    for name in names:
        unique = [(owner, text) for _, owner, text in found[name] if _key(text) not in repeated]
        if name == TOPICS:
            for topic, text in unique:
                yield f"{name}:{topic}", f"{_module(name)}:{topic}", text
        elif unique:
            yield name, _module(name), "\n\n".join(text for _, text in unique) + "\n"


def _module(name):
    return name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _read(name):
    return (root() / name).read_bytes().decode("utf-8", errors="replace")


def _docstrings(name, text):
    """(first line, owner, cleaned text) of each docstring of a module with enough words; of a topic as well."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in old modules
        try:
            tree = ast.parse(text)
        except SyntaxError:
            return []
    if name == TOPICS:
        (topics,) = [node.value for node in tree.body if isinstance(node, ast.Assign)]
        read = [(0, key, topic.strip() + "\n") for key, topic in sorted(ast.literal_eval(topics).items())]
    else:
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        nodes = [node for node in ast.walk(tree) if isinstance(node, kinds) and ast.get_docstring(node, clean=False)]
        read = [
            (node.body[0].lineno, getattr(node, "name", name), inspect.cleandoc(ast.get_docstring(node, clean=False)))
            for node in nodes
        ]
        read.sort(key=lambda item: item[0])
    return [item for item in read if len(_words(item[2])) >= WORDS]


def _words(text):
    return re.findall(r"\w+", text)


def _key(text):
    return tuple(_words(text))


def _repeated(found, texts):
    """The word sequences of docstrings that stand in more than one module (a topic counts as a module of its own)."""
    owners = defaultdict(set)
    for name, docstrings in found.items():
        for _, owner, text in docstrings:
            owners[_key(text)].add((name, owner) if name == TOPICS else name)
    by_opening = defaultdict(list)
    for words in owners:
        by_opening[words[:WORDS]].append(words)
    repeated = {words for words, names in owners.items() if len(names) > 1}
    for name, owner, words in _texts(found, texts):
        for start in range(len(words) - WORDS + 1):
            for candidate in by_opening.get(tuple(words[start : start + WORDS]), ()):
                if (
                    candidate not in repeated
                    and (name, owner) not in owners[candidate]
                    and name not in owners[candidate]
                    and tuple(words[start : start + len(candidate)]) == candidate
                ):
                    repeated.add(candidate)
    return repeated


def _texts(found, texts):
    """(module, topic or None, words) of everything in which a docstring might stand."""
    for name, text in texts.items():
        if name != TOPICS:
            yield name, None, _words(text)
    for _, topic, text in found.get(TOPICS, ()):
        yield TOPICS, topic, _words(text)
