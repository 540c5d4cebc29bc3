"""Checks of the recipes and of the manifests that exist, by one process: the workflow imports no stage."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stages.lib.errors import UserError

USER_MISTAKE = 2


@dataclass(frozen=True)
class Checked:
    """The result of `tools.check`."""

    stale: dict[str, str] = field(default_factory=dict)
    """{manifest: why it must be made again}"""

    initial: dict[str, str] = field(default_factory=dict)
    """{run: digest of the model that its `initial.path` holds}"""

    warnings: list[str] = field(default_factory=list)


def check_stages(plan: Mapping[str, Any], home: Path) -> Checked:
    """Return what `tools.check` of the checkout `home` finds. Raises UserError for a mistake in a recipe.

    If it cannot run (its container is missing here), the jobs check their recipes themselves.
    """
    container = shlex.split(os.environ.get("CARAVAN_CONTAINER", ""))
    command = [*container, "python"] if container else [sys.executable]
    environment = {**os.environ, "PYTHONPATH": str(home), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        [*command, "-m", "tools.check"],
        input=json.dumps(plan),
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    last = (done.stderr.strip().splitlines() or ["no output"])[-1]
    if done.returncode == USER_MISTAKE:
        raise UserError(last.removeprefix("check: "))
    if done.returncode != 0:
        return Checked(warnings=[f"the recipes are checked only by their jobs, since tools.check failed: {last}"])
    return Checked(**json.loads(done.stdout))


def sentences_of_stale(stale: Mapping[str, str], again: bool) -> list[str]:
    """Return one sentence per reason, with the first manifest that has it and the number of others.

    `again`: they are planned again.
    """
    paths: dict[str, list[str]] = {}
    for path, reason in stale.items():
        paths.setdefault(reason, []).append(path)
    result = "it is planned again" if again else "it is not planned again, since --rerun-triggers has no params"
    return [
        f"{first} {reason}: {result}{f', as are {len(others)} others' if others else ''}"
        for reason, (first, *others) in paths.items()
    ]
