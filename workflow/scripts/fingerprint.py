"""Fingerprints of the stages' code: they change if a stage may compute something else, and only then.

`python -m stages.NAME` hides the code from Snakemake; a fingerprint in `params` shows it again. Comments, docstrings
and line breaks do not count.
"""

import ast
import contextlib
import functools
import hashlib
import importlib.util
import json
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

OWN_CODE = Path(__file__).read_bytes()


@dataclass(frozen=True)
class Source:
    """The statements of a module's file, and what it imports."""

    file: str
    """sha256 of the file, and of the code here that reads it."""

    statements: str
    """sha256 of the statements, written in one way."""

    names: list[str]
    """Imported names that begin with `stages`: of modules, and of what they define."""


def fingerprints(modules: Iterable[str], root: Path) -> dict[str, str]:
    """Return {module: sha256 of it and of all `stages.*` that it imports, directly or not}, in hexadecimal.

    `modules` are dotted names below `root`. Each job on a cluster repeats this, and to parse all takes a second: the
    sources are kept beside Python's compiled files, and a file is parsed again if its bytes have changed.

    Raises FileNotFoundError if a module does not exist.
    """
    try:
        data = json.loads(_kept_at(root).read_bytes())
        kept = {name: Source(**fields) for name, fields in data.items()}
    except (OSError, ValueError, TypeError, AttributeError):  # missing or damaged
        kept = {}
    found: dict[str, Source] = {}

    @functools.cache
    def is_module(name: str) -> bool:
        return _file_of(name, root).is_file()

    def read(name: str) -> tuple[str, list[str]]:
        if name not in found:
            found[name] = _read(name, root, kept.get(name))
        return found[name].statements, list(filter(is_module, found[name].names))

    made = {module: _fingerprint(module, read) for module in modules}
    if found != kept:
        _keep(found, root)
    return made


def _fingerprint(module: str, read: Callable[[str], tuple[str, list[str]]]) -> str:
    sources: dict[str, str] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name not in sources:
            sources[name], imported = read(name)
            waiting += imported
    text = "\n".join(f"{name} {sources[name]}" for name in sorted(sources))
    return hashlib.sha256(text.encode()).hexdigest()


def _read(name: str, root: Path, kept: Source | None) -> Source:
    """Return what a module's file holds, parsed unless `kept` is of the same bytes."""
    path = _file_of(name, root)
    content = path.read_bytes()
    digest = hashlib.sha256(OWN_CODE + content).hexdigest()
    if kept is not None and kept.file == digest:
        return kept
    tree = ast.parse(content)
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    names = sorted({found for found in _imports(tree, package) if found.split(".")[0] == "stages"})
    statements = ast.unparse(_without_docstrings(tree))
    return Source(digest, hashlib.sha256(statements.encode()).hexdigest(), names)


def _kept_at(root: Path) -> Path:
    """Return where sources are kept: each version of Python, which writes statements in its own way, has a file."""
    return Path(importlib.util.cache_from_source(str(root / "stages/fingerprints.py"))).with_suffix(".json")


def _keep(sources: dict[str, Source], root: Path) -> None:
    """Write the sources, unless Python keeps no compiled files, or their place cannot be written."""
    if sys.dont_write_bytecode:
        return
    path = _kept_at(root)
    written = path.with_suffix(f".{uuid.uuid4().hex}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        written.write_text(json.dumps({name: asdict(source) for name, source in sources.items()}), encoding="utf-8")
        written.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            written.unlink()


def _file_of(name: str, root: Path) -> Path:
    path = Path(root, *name.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _imports(tree: ast.Module, package: list[str]) -> Iterator[str]:
    """Yield the names that a module in `package` imports, and that package."""
    yield ".".join(package)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _without_docstrings(tree: ast.Module) -> ast.Module:
    """Remove string statements from the tree: docstrings of modules, functions and fields."""
    for node in ast.walk(tree):
        for field in ("body", "orelse", "finalbody"):
            statements = getattr(node, field, None)
            if isinstance(statements, list):
                setattr(node, field, [statement for statement in statements if not _is_docstring(statement)])
    return tree


def _is_docstring(statement: ast.stmt) -> bool:
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)
