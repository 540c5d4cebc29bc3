"""Code in task files of lm-evaluation-harness: a tag !function runs Python, and a template of Jinja can."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from stages.lib.errors import UserError

TAG = "!function"


def check(directory: Path, trusted: bool, trust: str) -> None:
    """Raise UserError if a task file below `directory`, or one that it includes, has the tag and is not trusted.

    `trust`: what the user sets to trust it, for the message.
    """
    if trusted:
        return
    read: set[Path] = set()
    for path in sorted(directory.rglob("*.yaml")):
        found = _file_with_code(path.resolve(), read)
        if found is not None:
            raise UserError(f"{found} runs Python code ({TAG}): set {trust} if you trust the task files of {directory}")


def _file_with_code(path: Path, read: set[Path]) -> Path | None:
    """Return the first file with the tag: `path`, or one that it includes. `read`: the files that were read before."""
    if path in read or not path.is_file() or is_of_harness(path):
        return None
    read.add(path)
    content = _content(path)
    if content is None:
        return path
    included = content.get("include", []) if isinstance(content, dict) else []
    for name in included if isinstance(included, list) else [included]:
        found = _file_with_code((path.parent / str(name)).resolve(), read)
        if found is not None:
            return found
    return None


class _CodeError(Exception):
    """The file has the tag."""


def _content(path: Path) -> Any:
    """Return the YAML of a file without running anything; None if it has the tag. Raises UserError for other text."""
    import yaml

    class Loader(yaml.SafeLoader):
        pass

    def refuse(*_: Any) -> None:
        raise _CodeError

    Loader.add_constructor(TAG, refuse)
    try:
        return yaml.load(path.read_bytes(), Loader) or {}  # noqa: S506
    except _CodeError:
        return None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path} must be a YAML file of a task: {reason:.300}") from None


def is_of_harness(path: Path) -> bool:
    """Return True for a file of lm-evaluation-harness itself: its code is installed, and runs anyway."""
    path = path.resolve()
    spec = importlib.util.find_spec("lm_eval")
    homes = (spec.submodule_search_locations or ()) if spec else ()
    return any(path.is_relative_to(Path(home).resolve()) for home in homes)


def guard_templates() -> None:
    """Let the harness render the templates of tasks in Jinja's sandbox, where they reach no Python objects but data."""
    from jinja2.sandbox import SandboxedEnvironment
    from lm_eval import utils

    options = {name: getattr(utils.env, name) for name in ("loader", "undefined", "keep_trailing_newline")}
    guarded = SandboxedEnvironment(**options)
    guarded.filters.update(utils.env.filters)
    utils.env = guarded
