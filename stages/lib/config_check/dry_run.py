"""A dry run of the workflow in a process of its own: only the workflow can expand a config."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from stages.lib import files
from stages.lib.errors import UserError

HOME = Path(__file__).resolve().parents[3]
"""The checkout."""

SNAKEFILE = HOME / "workflow/Snakefile"
FACTS = "CARAVAN_CHECK_FACTS"
"""The environment variable that names the file into which the check of the recipes writes what it learnt."""

STATISTICS = re.compile(r"^Job stats:\n.*\n[- ]+\n((?:.+\n)+)", re.MULTILINE)
JOB = re.compile(r"^(\w+) +(\d+)$", re.MULTILINE)
WARNING = "caravan: "


@dataclass(frozen=True)
class DryRun:
    """The result of a dry run. `jobs`: {rule: number of jobs}, targets included. `facts`: see `facts.facts_of`."""

    jobs: dict[str, int]
    warnings: list[str]
    facts: dict[str, Any]


def profile_of(name: str) -> str:
    """Return the path of a profile: a directory here, or one of the checkout's (`local`). Raises UserError."""
    for path in (Path(name), HOME / "profiles" / name):
        if (path / "config.yaml").is_file() or path.is_file():
            return str(path)
    known = ", ".join(sorted(path.name for path in (HOME / "profiles").iterdir() if path.is_dir()))
    raise UserError(f"--profile must be a directory with a config.yaml, or one of {known}, got {name}")


def check_file(path: Path) -> None:
    """Raise UserError if a config file is not YAML that can be read."""
    try:
        made = yaml.load(path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
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


def dry_run(given: Sequence[str], target: str, profile: str | None) -> DryRun:
    """Return what the workflow would do with config files and values. Raises UserError for a mistake in them."""
    if importlib.util.find_spec("snakemake") is None:
        raise UserError(f"Snakemake must be installed in {sys.executable}, and is not")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, "facts.json")
        command = [sys.executable, "-m", "snakemake", "--snakefile", str(SNAKEFILE), "--dry-run", "--nolock", target]
        command += ["--profile", profile_of(profile)] if profile else ["--cores", "1"]
        environment = {**os.environ, FACTS: str(place), "PYTHONSAFEPATH": "1"}
        done = subprocess.run(
            [*command, *config_options(given)], capture_output=True, text=True, env=environment, check=False
        )
        lines = (done.stdout + done.stderr).splitlines()
        if done.returncode != 0:
            last = next((line for line in reversed(lines) if line.strip()), "Snakemake failed without a word")
            raise UserError(last.strip().removeprefix("config: "))
        facts = files.read_json_object(place) if place.exists() else {}
    found = STATISTICS.search(done.stdout)
    jobs = {rule: int(count) for rule, count in JOB.findall(found[1])} if found else {}
    warnings = [line.removeprefix(WARNING) for line in lines if line.startswith(WARNING)]
    return DryRun({rule: count for rule, count in jobs.items() if rule != "total"}, warnings, facts)
