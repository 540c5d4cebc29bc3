"""Check of a config's files as they are written: YAML keeps the last of two equal keys without a word."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import yaml
from yaml.nodes import MappingNode, Node, SequenceNode

from scripts.config.references import ConfigError


def check_twice(paths: Iterable[Path | str]) -> None:
    """Raise ConfigError for the first key that stands twice in a mapping of a config file."""
    for path in paths:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        try:
            root = yaml.compose(Path(path).read_text(encoding="utf-8"), Loader=loader)
        except (OSError, ValueError, yaml.YAMLError):  # Snakemake has read it: it may be a template
            continue
        if root is not None:
            _check(root, str(path), "", set())


def _check(node: Node, path: str, where: str, seen: set[int]) -> None:
    if id(node) in seen:  # an alias of a node that is checked already
        return
    seen.add(id(node))
    if isinstance(node, SequenceNode):
        for number, item in enumerate(node.value):
            _check(item, path, f"{where}[{number}]", seen)
    if isinstance(node, MappingNode):
        lines: dict[str, int] = {}
        for key, value in node.value:
            name, line = str(key.value), key.start_mark.line + 1
            here = f"{where}.{name}" if where else name
            if name in lines and name != "<<":
                raise ConfigError(f"{path}: {here} must stand once, got it on line {lines[name]} and on line {line}")
            lines[name] = line
            _check(value, path, here, seen)
