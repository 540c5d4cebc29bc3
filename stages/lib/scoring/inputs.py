"""Checks of what a suite is scored with: the export, its corpus, and the source of prompts and completions."""

from __future__ import annotations

import glob
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stages.lib import files, manifest
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
    for name, described in (export.identity["outputs"] | export.record.get("files", {})).items():
        manifest.check_content(export.directory / name, described, export.path)


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


def data_outside(directory: Path) -> list[Path]:
    """Return the local files outside a directory that its task files name as data, sorted.

    `datasets` resolves relative paths and patterns in the working directory.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        pass

    Loader.add_multi_constructor("!", lambda *_: None)  # nothing is run
    named: set[Path] = set()

    def walk(value: Any) -> None:
        if isinstance(value, str):
            named.update(Path(found) for found in glob.glob(value, recursive=True))
        for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            walk(inner)

    for path in sorted([*directory.rglob("*.yaml"), *directory.rglob("*.yml")]):
        try:
            config = yaml.load(path.read_bytes(), Loader)  # noqa: S506
        except (OSError, ValueError, RecursionError, yaml.YAMLError):
            continue  # the harness names it if a suite has it
        if isinstance(config, dict):
            walk([config.get("dataset_path"), config.get("dataset_kwargs")])
    below = [file for path in named for file in ([path] if path.is_file() else path.rglob("*")) if file.is_file()]
    return sorted({file for file in below if not file.resolve().is_relative_to(directory.resolve())})


def digest_of_directory(path: Path) -> str:
    """Return the sha256 over names and contents of the files below a directory."""
    digest = hashlib.sha256()
    for file in sorted(path.rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts:
            digest.update(f"{file.relative_to(path).as_posix()}\0{files.sha256_file(file)}\n".encode())
    return digest.hexdigest()
