"""Prompt-completion pairs of the Python installation: a function's header, and the first line of its docstring.

    prompt      'def isdir(s):\\n    \"\"\"'                the header on one line, without decorators and indentation
    completion  'Return true if the pathname refers ...'  the summary line (PEP 257): a blank line or nothing follows it

The pairs are split by module, with the same keys as the other Python sources. With an equal `validation` share, a
function of the validation split stands in a module that pretraining has not read either. A pair is excluded if a model
could be right, or wrong, for another reason than its knowledge of functions:

- the header stands a second time in the library, so that it does not identify the function;
- the line stands a second time as a summary, or word for word anywhere in another module;
- the line contains the call (`walk(top) -> ...`), or has less than three words;
- the function is special (`__init__`), and its line is that of every such function.

Of 6,291 functions with a docstring in Python 3.11.7, 2,701 remain.
"""

from __future__ import annotations

import ast
import copy
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from stages.lib.sources.kinds import python_source
from stages.lib.sources.repeats import Words, repeated, words_of

WORDS = 3


@dataclass(frozen=True)
class _Function:
    """A function of a module; `summary` is None without a summary line."""

    line: int
    name: str
    header: str
    summary: str | None


def pairs(names: Iterable[str], every_name: Iterable[str]) -> Iterator[tuple[str, str, str, str]]:
    """Yield (id, split key, prompt, completion) of each function of the modules `names` that makes a pair.

    `every_name`: all modules; a header or a line that stands in them a second time is excluded.
    """
    texts = {name: python_source.read(name) for name in every_name}
    functions = {name: _functions(text) for name, text in texts.items()}
    headers = Counter(function.header for found in functions.values() for function in found)
    summaries = Counter(_key(function) for found in functions.values() for function in found if function.summary)
    owners = {
        _key(function): {name} for name, found in functions.items() for function in found if _is_telling(function)
    }
    elsewhere = repeated(owners, ((name, words_of(text)) for name, text in texts.items()), WORDS)
    for name in names:
        for function in functions[name]:
            once = headers[function.header] == summaries[_key(function)] == 1
            if _is_telling(function) and once and _key(function) not in elsewhere:
                prompt = f'{function.header}\n    """'
                assert function.summary is not None
                yield f"{name}:{function.line}", python_source.module_of(name), prompt, function.summary


def _functions(text: str) -> list[_Function]:
    """Return the functions of a module, in order."""
    nodes = sorted(python_source.nodes_of(text, python_source.FUNCTIONS), key=_line)
    return [_Function(_line(node), node.name, _header(node), _summary(node)) for node in nodes]


def _line(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return node.lineno


def _header(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Return `def f(a, b=1) -> int:`, or `async def`, on one line."""
    bare = copy.copy(node)
    bare.body, bare.decorator_list = [ast.Pass()], []
    return ast.unparse(bare).removesuffix("\n    pass")


def _summary(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str | None:
    lines = (ast.get_docstring(node) or "").strip().splitlines()
    return lines[0].strip() if lines and not "".join(lines[1:2]).strip() else None


def _key(function: _Function) -> Words:
    return words_of(function.summary or "")


def _is_telling(function: _Function) -> bool:
    """Return True if a function has a summary line that a model can be asked to complete."""
    special = function.name.startswith("__") and function.name.endswith("__")
    if function.summary is None or special or len(_key(function)) < WORDS:
        return False
    is_call = re.search(rf"\b{re.escape(function.name.strip('_'))}\s*\(", function.summary)
    return not is_call and re.search("[-=]>", function.summary) is None
