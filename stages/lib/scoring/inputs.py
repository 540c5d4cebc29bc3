"""Checks of what a suite is scored with: the export, its corpus, and the source of prompts and completions."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from stages.lib import files
from stages.lib.errors import UserError
from stages.lib.manifest import Manifest
from stages.lib.scoring.tasks import local_tasks
from stages.lib.sources import prompt_completion
from stages.lib.sources.prompt_completion import PairSource

PARITY = "parity.json"


def kept_manifest(output: Path) -> Path:
    """Return the path of the copy of a suite's manifest `output`, which stages.evaluate keeps beside its tasks."""
    return output.with_suffix("") / "manifest.json"


def check_export(export: Manifest, corpus: Manifest) -> None:
    """Raise UserError unless the export passed its parity check, is unchanged, and belongs to the corpus."""
    check_unchanged(export)
    if export.identity["corpus"] != corpus.digest:
        raise UserError(f"--export {export.path} was trained on another corpus than --corpus {corpus.path}")


def check_unchanged(export: Manifest) -> None:
    """Raise UserError unless the export passed its parity check, and each of its files has its sha256."""
    remedy = f"delete {export.path} and run the workflow again"
    parity = export.directory / PARITY
    if not parity.exists():
        raise UserError(f"{parity} is missing, and an export is scored only if it passed its parity check; {remedy}")
    if files.read_json_object(parity).get("passed") is not True:
        raise UserError(f"{parity} must say that the parity check passed, and it does not; {remedy}")
    for name, described in export.identity["outputs"].items():
        path = export.output(name)
        if files.sha256_file(path) != described["sha256"]:
            raise UserError(f"{path} changed since {export.path} was written; {remedy}")


def read_pairs(path: Path | None, tasks: Sequence[str]) -> PairSource | None:
    """Read the pairs of the list at `path`; None without.

    Raises UserError if a task needs pairs and `path` is None, or no task reads the pairs of `path`.
    """
    needing = [task for task in tasks if task in local_tasks.OF_PROMPT_COMPLETION]
    if needing and path is None:
        raise UserError(
            f"evaluate.tasks: {needing[0]} must have a source of prompts and completions "
            "(prompt_completion in a suite, --prompt-completion here)"
        )
    if path is not None and not needing:
        known = " or ".join(local_tasks.OF_PROMPT_COMPLETION)
        raise UserError(f"evaluate.tasks must have {known} to read --prompt-completion {path}, got {', '.join(tasks)}")
    return None if path is None else prompt_completion.read(path)


def digest_of_directory(path: Path) -> str:
    """Return the sha256 over names and contents of the files below a directory."""
    digest = hashlib.sha256()
    for file in sorted(path.rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts:
            digest.update(f"{file.relative_to(path).as_posix()}\0{files.sha256_file(file)}\n".encode())
    return digest.hexdigest()
