"""Fingerprints of the stages' code: they change if a stage may compute something else, and only then.

`python -m stages.NAME` hides the code from Snakemake; a fingerprint in `params` shows it again. Comments, docstrings
and line breaks do not count.
"""

import ast
import functools
import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path


def fingerprint(module: str, root: Path) -> str:
    """Return the sha256 of a module and of all `stages.*` that it imports, directly or not, in hexadecimal.

    `module` is a dotted name below `root`. Raises FileNotFoundError if the module does not exist.
    """
    return fingerprints([module], root)[module]


def fingerprints(modules: Iterable[str], root: Path) -> dict[str, str]:
    """Return the fingerprint of each of several modules, by its name.

    Shared modules are read once: each job on a cluster repeats this, and the stages share most of their code.
    """
    read = functools.cache(functools.partial(_read, root=root))
    return {module: _fingerprint(module, read) for module in modules}


def _fingerprint(module: str, read: Callable[[str], tuple[str, list[str]]]) -> str:
    sources: dict[str, str] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name not in sources:
            sources[name], imported = read(name)
            waiting += imported
    text = "\n".join(f"# {name}\n{sources[name]}" for name in sorted(sources))
    return hashlib.sha256(text.encode()).hexdigest()


def _read(name: str, root: Path) -> tuple[str, list[str]]:
    """Return the statements of a module as text, and the names of the modules that it imports."""
    tree = ast.parse(_file_of(name, root).read_text(encoding="utf-8"))
    imported = _imports(tree, name, root)
    return ast.unparse(_without_docstrings(tree)), imported


def _file_of(name: str, root: Path) -> Path:
    path = Path(root, *name.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _imports(tree: ast.Module, name: str, root: Path) -> list[str]:
    """Return the modules below `root` that a module imports, and the packages around it."""
    package = name.split(".") if _file_of(name, root).name == "__init__.py" else name.split(".")[:-1]
    found = {".".join(package)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            found |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    return sorted(other for other in found if other.split(".")[0] == "stages" and _file_of(other, root).is_file())


def _without_docstrings(tree: ast.Module) -> ast.Module:
    """Remove string statements from the tree: docstrings of modules, functions and fields."""
    for node in ast.walk(tree):
        for field in ("body", "orelse", "finalbody"):
            statements = getattr(node, field, None)
            if isinstance(statements, list):
                setattr(node, field, [statement for statement in statements if not _is_docstring(statement)])
    return tree


def _is_docstring(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )
