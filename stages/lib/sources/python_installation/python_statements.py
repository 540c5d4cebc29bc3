"""Prompt-completion pairs of the Python installation: a statement, and what it does in words.

    prompt      'self.size = len(book)  #'                         a simple statement, as ast.unparse writes it
    completion  ' sets an attribute to the result of a function'   from its syntax tree

The words are few and the answer follows from the statement alone, so that a small model can learn to give it in
minutes. The pairs are split by module, with the same keys as the other Python sources. A statement that stands a
second time in the library is excluded: a model could have learned it by heart. A function gives its last statement.

Of 14,707 functions in Python 3.11.7, 6,817 make a pair. They have 62 completions; the most common is that of 21%.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator

from stages.lib.sources.python_installation import python_source

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


def pairs(names: Iterable[str], every_name: Iterable[str]) -> Iterator[tuple[str, str, str, str]]:
    """Yield (id, split key, prompt, completion) of each function of the modules `names` that makes a pair.

    `every_name`: all modules, in which a statement may stand again.
    """
    found = {name: list(_last_statements(python_source.read(name))) for name in every_name}
    counts = Counter(text for statements in found.values() for _, text, _ in statements)
    for name in names:
        for line, text, words in found[name]:
            if counts[text] == 1:
                yield f"{name}:{line}", python_source.module_of(name), f"{text}  #", f" {words}"


def _last_statements(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield (line, statement, what it does) of each function whose last statement is a simple one, in order."""
    functions = python_source.nodes_of(text, python_source.FUNCTIONS)
    for statement in sorted((function.body[-1] for function in functions), key=_line):
        words, written = described(statement), ast.unparse(statement)
        if words is not None and len(written) <= MAX_CHARACTERS and "\n" not in written:
            yield statement.lineno, written, words


def _line(node: ast.stmt) -> int:
    return node.lineno


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
