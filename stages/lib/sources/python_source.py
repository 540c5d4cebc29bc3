"""The text in the box: the modules of the Python installation, and the prose in their docstrings.

Both sources are split by module, so the docstrings of a validation module stand in no training code of its own. Many
docstrings stand in several modules, though ("Close the file."). So a docstring is prose only when it has at least six
words, and its words stand in a row in no other module.
"""

import ast
import inspect
import os
import sysconfig
import warnings
from collections import defaultdict
from pathlib import Path

from stages.lib.sources.repeats import repeated, words_of

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
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


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


def module_of(name):
    """The dotted name of a module by its file: the key by which every Python source is split."""
    return name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def read(name):
    """The text of a module."""
    return (root() / name).read_bytes().decode("utf-8", errors="replace")


def nodes_of(text, kinds):
    """The nodes of some kinds in a module's tree; none where this Python cannot parse it (templates of lib2to3)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in old modules
        try:
            tree = ast.parse(text)
        except SyntaxError:
            return []
    return [node for node in ast.walk(tree) if isinstance(node, kinds)]


def code(names):
    """Yield (id, split key, text) for each module but the topics."""
    for name in names:
        if name != TOPICS:
            yield name, module_of(name), (root() / name).read_bytes()


def prose(names, every_name):
    """Yield (id, split key, text) for each module that has prose: its docstrings in order; and for each topic.

    `every_name`: all modules, in which a docstring is looked for before it counts.
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


def _docstrings(name, text):
    """(first line, owner, cleaned text) of each docstring of a module with enough words; of a topic as well."""
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


def _topics(text):
    (topics,) = [node.value for node in nodes_of(text, ast.Assign)]
    return ast.literal_eval(topics)


def _owners(found):
    """{words of a docstring: the places that it is the docstring of}; a topic counts as a module of its own."""
    owners = defaultdict(set)
    for name, docstrings in found.items():
        for _, owner, text in docstrings:
            owners[words_of(text)].add((name, owner if name == TOPICS else None))
    return owners


def _places(found, texts):
    """((module, topic or None), words) of everything in which a docstring might stand."""
    for name, text in texts.items():
        if name != TOPICS:
            yield (name, None), words_of(text)
    for _, topic, text in found.get(TOPICS, ()):
        yield (TOPICS, topic), words_of(text)
