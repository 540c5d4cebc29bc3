"""Checks of what a suite is scored with: the export, its corpus, and the source of prompts and completions."""

from __future__ import annotations

import glob
import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from stages.lib import files, manifest
from stages.lib.errors import UserError
from stages.lib.manifest import ExportManifest
from stages.lib.scoring import task_code
from stages.lib.scoring.tasks import local_tasks
from stages.lib.sources import examples
from stages.lib.sources.examples import PairSource

PARITY = "parity.json"
READERS = ("json", "csv", "parquet", "arrow", "text", "pandas", "xml", "webdataset", "imagefolder", "audiofolder")
"""Values of `dataset_path` that stand for a format, also where a directory has that name."""


def kept_manifest(output: Path) -> Path:
    """Return the path of the copy of a suite's manifest `output`, which stages.evaluate keeps beside its tasks."""
    return output.with_suffix("") / "manifest.json"


def check_unchanged(export: ExportManifest) -> None:
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
    return None if path is None else examples.read_pairs(path)


def files_outside(directory: Path) -> list[Path]:
    """Return the local files outside a directory of tasks that its task files name, sorted."""
    return sorted({*_files_elsewhere(directory, _files_below(directory)).values()})


def _files_below(directory: Path) -> list[Path]:
    return [file for file in sorted(directory.rglob("*")) if file.is_file() and "__pycache__" not in file.parts]


def digest_of_directory(path: Path, sha256: Callable[[Path], str] = files.sha256_file) -> str:
    """Return the sha256 over names and contents of the files below a directory of tasks, and of the local files
    elsewhere that its tasks name: YAML that they include, their code, their data.
    """
    below = _files_below(path)
    named = {file.relative_to(path).as_posix(): file for file in below}
    digest = hashlib.sha256()
    for name, file in (named | _files_elsewhere(path, below)).items():
        digest.update(f"{name}\0{sha256(file)}\n".encode())
    return digest.hexdigest()


def _files_elsewhere(directory: Path, below: Sequence[Path]) -> dict[str, Path]:
    """Return {name as written: file} of the files outside a directory of tasks that its task files name, sorted."""
    import yaml

    home, found, read = directory.resolve(), dict[str, Path](), set[Path]()

    class Loader(yaml.SafeLoader):
        """Reads a task file without running anything: a tag such as !function becomes its text."""

    Loader.add_multi_constructor("!", lambda loader, _, node: _Tagged(getattr(node, "value", "")))
    waiting = [file for file in below if file.suffix in (".yaml", ".yml")]
    while waiting:
        file = waiting.pop()
        if file.resolve() in read:
            continue
        read.add(file.resolve())
        try:
            content = yaml.load(file.read_bytes(), Loader)  # noqa: S506
        except (OSError, yaml.YAMLError, ValueError, RecursionError):  # the harness names the mistake
            continue
        if not isinstance(content, dict):
            continue
        included = content.get("include") or []
        others = {str(name): file.parent / str(name) for name in _texts_in(included)}
        waiting += [other for other in others.values() if other.is_file() and not task_code.is_of_harness(other)]
        for text in _texts_in(content):
            if isinstance(text, _Tagged):
                others[f"{text}"] = file.parent / f"{text.rpartition('.')[0]}.py"
        options = content.get("dataset_kwargs")
        options = options if isinstance(options, dict) else {}
        data_of_task = [options.get("data_files"), options.get("data_dir")]
        if content.get("dataset_path") not in READERS:
            data_of_task.append(content.get("dataset_path"))
        for text in _texts_in(data_of_task):
            for place in sorted(glob.glob(text.removeprefix("file://"), recursive=True)):
                data = Path(place)
                inside = [one for one in sorted(data.rglob("*")) if one.is_file()] if data.is_dir() else [data]
                others |= {one.as_posix(): one for one in inside}
        found |= {
            name: other
            for name, other in others.items()
            if other.is_file() and not other.resolve().is_relative_to(home) and not task_code.is_of_harness(other)
        }
    return dict(sorted(found.items()))


class _Tagged(str):
    """The text of a tag's value in YAML."""


def _texts_in(value: Any) -> Iterator[str]:
    """Yield the texts in plain data."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts_in(item)
