"""The command of a dry run of the workflow, and what it prints: only the workflow can expand a config."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from stages.lib.errors import UserError

HOME = Path(__file__).resolve().parents[2]
"""The checkout."""

SNAKEFILE = HOME / "workflow/Snakefile"
FACTS = "CARAVAN_CHECK_FACTS"
"""The environment variable that names the file into which the check of the recipes writes what it learnt."""

LOCAL = "CARAVAN_CHECK_LOCAL"
"""The environment variable that is set if trainings would run on this machine."""

STATISTICS = re.compile(r"^Job stats:\n.*\n[- ]+\n((?:.+\n)+)", re.MULTILINE)
JOB = re.compile(r"^(\w+) +(\d+)$", re.MULTILINE)
WARNING = "caravan: "


@dataclass(frozen=True)
class DryRun:
    """The result of a dry run. `jobs`: {rule: number of jobs}, targets included. `facts`: see `facts.facts_of`."""

    jobs: dict[str, int]
    warnings: list[str]
    facts: dict[str, Any]


PROFILE_FILES = ("profile.yaml", "config.yaml")
"""Names of the file in the directory of a profile; Snakemake before 9.19 read the second one alone."""


def profile_of(name: str) -> str:
    """Return the path of a profile: a directory here, or one of the checkout's (`local`). Raises UserError."""
    for path in (Path(name), HOME / "profiles" / name):
        if path.is_file() or any((path / file).is_file() for file in PROFILE_FILES):
            return str(path)
    known = ", ".join(sorted(path.name for path in (HOME / "profiles").iterdir() if path.is_dir()))
    raise UserError(f"--profile must be a directory with a profile.yaml, or one of {known}, got {name}")


def is_local(profile: str | None) -> bool:
    """Return True if jobs run on this machine: without a profile, or by one that names no executor."""
    if profile is None:
        return True
    path = Path(profile_of(profile))
    if path.is_dir():
        path = next(path / file for file in PROFILE_FILES if (path / file).is_file())
    text = path.read_text(encoding="utf-8")
    return re.search(r"^executor:", text, re.MULTILINE) is None


def check_file(path: Path) -> None:
    """Raise UserError if a config file is not YAML that can be read."""
    try:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        made = yaml.load(path.read_text(encoding="utf-8"), Loader=loader)  # noqa: S506 (safe)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, yaml.YAMLError) as error:
        raise UserError(f"{path} must be YAML: {' '.join(str(error).split())}") from None
    if not isinstance(made, dict):
        raise UserError(f"{path} must be a mapping of keys to values, and is not")


def config_options(given: Sequence[str]) -> list[str]:
    """Return Snakemake's options for config files and values (`runs.base.pretrain.steps=100`), in any order.

    Raises UserError for a file that cannot be one.
    """
    values = [word for word in given if "=" in word]
    paths = [word for word in given if "=" not in word]
    for path in paths:
        check_file(Path(path))
    options = ["--configfile", *paths] if paths else []
    return [*options, *(["--config", f"set={json.dumps(values)}"] if values else [])]


def command_of(given: Sequence[str], target: str, profile: str | None) -> list[str]:
    """Return the command of a dry run with config files and values. Raises UserError for a file that cannot be one."""
    if importlib.util.find_spec("snakemake") is None:
        raise UserError(f"Snakemake must be installed in {sys.executable}, and is not")
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(SNAKEFILE), "--dry-run", "--nolock", target]
    where = ["--profile", profile_of(profile)] if profile else ["--cores", "1"]
    return [*command, *where, *config_options(given)]


def result_of(code: int, printed: str, errors: str, facts: dict[str, Any]) -> DryRun:
    """Return the result of a dry run that ended with an exit code. Raises UserError for a mistake in the config."""
    lines = (printed + errors).splitlines()
    if code != 0:
        last = next((line for line in reversed(lines) if line.strip()), "Snakemake failed without a word")
        raise UserError(last.strip().removeprefix("config: "))
    found = STATISTICS.search(printed)
    jobs = {rule: int(count) for rule, count in JOB.findall(found[1])} if found else {}
    warnings = [line.removeprefix(WARNING) for line in lines if line.startswith(WARNING)]
    return DryRun({rule: count for rule, count in jobs.items() if rule != "total"}, warnings, facts)
