"""Check of the config: each mistake is one sentence that names the key, what it must be, and what was found."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, SequenceNode

from scripts.config.keys import KeysReader
from scripts.config.references import check_references
from scripts.config.sections import Config
from scripts.config.written_out import FROM, check_left_out, is_derived, with_defaults, written_out
from scripts.sweeps.ladders import with_ladders
from scripts.sweeps.runs import check_sweeps, runs_of, with_runs, with_seeds
from stages.lib.errors import UserError
from stages.lib.recipe import below


def check_twice(paths: Iterable[Path | str]) -> None:
    """Raise UserError for the first key that stands twice in a mapping of a config file."""
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
                raise UserError(f"{path}: {here} must stand once, got it on line {lines[name]} and on line {line}")
            lines[name] = line
            _check(value, path, here, seen)


MAX_ENTRIES = 1_000_000


def checked(config: dict[str, Any]) -> dict[str, Any]:
    """Return a checked copy of a config, with numbers as numbers: YAML reads `1e-3` as text.

    It holds what the user wrote and what can be nothing else (config/written_out.py): no defaults of the stages. Runs
    `from` others and runs of sweeps and ladders are written out. Raises UserError.
    """
    _check_size(config)
    written = KeysReader(is_partial=True).group(Config, config, "")
    config = with_defaults(_with_plain_runs(written))
    if runs := config.get("runs"):  # a mistake that a run takes over from another is named at the other
        names = sorted(runs, key=lambda name: is_derived(written["runs"].get(name, {FROM: None})))
        config["runs"] = {name: runs[name] for name in names}
    config = KeysReader().group(Config, config, "")
    config["runs"] = {name: config["runs"][name] for name in runs or ()}
    config = with_runs(config)
    check_left_out(config)
    check_references(config)
    check_sweeps(config)
    return with_ladders(config)


def _with_plain_runs(config: dict[str, Any]) -> dict[str, Any]:
    """Return the config with the runs of sweeps, and with no run `from` another."""
    if config.get("runs") is None:
        return config
    runs = with_seeds(config["runs"])
    if "sweeps" in config:
        sweeps = KeysReader().value(below(Config, "sweeps"), config["sweeps"], "sweeps", {"entries": 1})
        for name, sweep in sweeps.items():
            runs = runs | runs_of(name, sweep, runs)
    return config | {"runs": written_out(runs)}


def _check_size(config: dict[str, Any]) -> None:
    """Raise UserError for a config whose anchors refer to anchors, or to themselves, without end."""
    waiting: list[Any] = [config]
    for _ in range(MAX_ENTRIES):
        if not waiting:
            return
        value = waiting.pop()
        waiting += value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    raise UserError(f"the config must have at most {MAX_ENTRIES:,} entries, got more: do its anchors repeat anchors?")
