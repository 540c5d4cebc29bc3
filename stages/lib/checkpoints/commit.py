"""The commit format: which files a checkpoint has, and when it is complete. Imports no torch.

    RUN_DIRECTORY/checkpoints/00000300/__0_0.distcp ...   tensors, one file per rank, or several of 2 GB
    RUN_DIRECTORY/checkpoints/00000300/.metadata          which tensor lies where
    RUN_DIRECTORY/checkpoints/00000300/commit.json        the commit marker, which is written last
    RUN_DIRECTORY/checkpoints/00000300/milestone.json     a copy of the milestone's manifest

commit.json has the format, the step, what the caller adds (samples, recipe, corpus, tokenizer), the bytes and sha256 of
each file, and its own sha256. A directory without commit.json, or with a file of another size or hash, is torn: it is
skipped, never read. A checkpoint with milestone.json is never deleted.

A checkpoint is written beside its place, as .00000300.<random>.making, and renamed when it is complete. It is deleted
as .00000300.<random>.removing. So a kill leaves no torn checkpoint, and two trainers never write to one directory.
"""

import os
import shutil
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from stages.lib import files, manifest
from stages.lib.errors import UserError
from stages.lib.log import logger

FORMAT = 1
COMMIT = manifest.COMMIT
MILESTONE = "milestone.json"
MAKING, REMOVING = ".making", ".removing"


def directory_of(run_directory: Path | str, step: int) -> Path:
    """The directory of the checkpoint of a step."""
    return Path(run_directory) / "checkpoints" / f"{step:08d}"


def write_commit(directory: Path, facts: Mapping[str, Any], described: Mapping[str, dict[str, Any]]) -> None:
    """Write the commit marker to the disk, after all other files.

    `facts`: the keys of commit.json beside the files. `described`: {name of a file: {"bytes", "sha256"}}.
    """
    commit = {"format": FORMAT, **facts, "files": {name: described[name] for name in sorted(described)}}
    files.write_json(directory / COMMIT, commit | {"sha256": manifest.digest_of(commit)})


def read_commit(directory: Path | str) -> dict[str, Any]:
    """The content of commit.json. Raises UserError if it is missing or changed, or a file has another size."""
    commit = read_marker(directory)
    for name, file in commit["files"].items():
        path = Path(directory) / name
        size = path.stat().st_size if path.is_file() else None
        if size != file["bytes"]:
            raise UserError(f"{path} must have {file['bytes']} bytes by {COMMIT}, found {size}")
    return commit


def read_marker(directory: Path | str) -> dict[str, Any]:
    """The content of commit.json; no other file is looked at. Raises UserError if it is missing or changed."""
    path = Path(directory) / COMMIT
    if not path.exists():
        raise UserError(f"{directory} is not a complete checkpoint: it has no {COMMIT}")
    commit = files.read_json(path)
    found = commit.get("format") if isinstance(commit, dict) else None
    if found != FORMAT:
        raise UserError(f"{path} must have format {FORMAT}, found {found!r:.20}")
    if commit.pop("sha256", None) != manifest.digest_of(commit):
        raise UserError(f"{path} changed since it was written: its sha256 differs from its content's")
    listed = commit.get("files")
    if not isinstance(listed, dict) or not all(_is_file(name, file) for name, file in listed.items()):
        raise UserError(f"{path} must list files of its directory, each with bytes and sha256")
    return commit


def _is_file(name: str, described: Any) -> bool:
    if name in ("", ".", "..") or "/" in name or not isinstance(described, dict):
        return False
    return type(described.get("bytes")) is int and isinstance(described.get("sha256"), str)


def verify(directory: Path | str, commit: Mapping[str, Any], part: int = 0, parts: int = 1) -> None:
    """Compare the sha256 of every `parts`-th file, from file `part` on. Raises UserError for the first that differs."""

    def compare(name: str) -> None:
        path = Path(directory) / name
        try:
            found = files.sha256_file(path)
        except OSError as error:
            raise UserError(f"{path} could not be read: {error}") from None
        if found != commit["files"][name]["sha256"]:
            raise UserError(f"{path} changed since it was written: its sha256 differs from {COMMIT}")

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:  # sha256 releases the GIL
        list(pool.map(compare, sorted(commit["files"])[part::parts]))


def complete_steps(run_directory: Path | str, at_most: int | None = None) -> list[int]:
    """The steps that have a complete checkpoint, ascending. A torn checkpoint is named in a warning."""
    steps = []
    for directory in _directories(run_directory, at_most):
        try:
            read_commit(directory)
        except UserError as error:
            logger.warning("skipping a torn checkpoint: %s", error)
            continue
        steps.append(int(directory.name))
    return steps


def directory_beside(directory: Path | str) -> Path:
    """A new name beside a checkpoint's directory, at which it is written before `publish`."""
    return _beside(Path(directory), MAKING)


def publish(making: Path, directory: Path) -> None:
    """Rename a complete checkpoint to its place. One that stands there is deleted, and stays a milestone."""
    kept = directory / MILESTONE
    if kept.exists():
        with files.atomic(making / MILESTONE) as file:
            file.write(kept.read_bytes())
    replaced = _moved_aside(directory)
    making.rename(directory)
    files.sync_directory(directory.parent)
    if replaced:
        shutil.rmtree(replaced, ignore_errors=True)


def remove(directory: Path | str) -> None:
    """Delete a checkpoint, if it exists. It is renamed first, so that a killed removal leaves no torn checkpoint."""
    if aside := _moved_aside(Path(directory)):
        shutil.rmtree(aside, ignore_errors=True)


def clear_leftovers(run_directory: Path | str) -> None:
    """Delete what killed saves and removals left. No other process may be saving.

    A complete checkpoint that was not renamed yet takes its place if that is free. Damaged checkpoints and milestones
    stay for inspection.
    """
    parent = Path(run_directory) / "checkpoints"
    for making in parent.glob(f".*{MAKING}"):
        place = parent / making.name.split(".")[1]
        if (making / COMMIT).exists() and not place.exists():
            making.rename(place)
    for leftover in [*parent.glob(f".*{MAKING}"), *parent.glob(f".*{REMOVING}")]:
        shutil.rmtree(leftover, ignore_errors=True)
    for directory in _directories(run_directory, None):
        files.clear_leftovers(directory / MILESTONE)
        if not (directory / COMMIT).exists() and not (directory / MILESTONE).exists():
            logger.warning("deleting a torn checkpoint: %s has no %s", directory, COMMIT)
            remove(directory)


def _moved_aside(directory: Path) -> Path | None:
    aside = _beside(directory, REMOVING)
    try:
        directory.rename(aside)
    except FileNotFoundError:
        return None
    return aside


def _beside(directory: Path, ending: str) -> Path:
    return directory.with_name(f".{directory.name}.{uuid.uuid4().hex}{ending}")


def _directories(run_directory: Path | str, at_most: int | None) -> list[Path]:
    found = sorted((Path(run_directory) / "checkpoints").glob("[0-9]*"))
    numbered = [directory for directory in found if directory.name.isdecimal()]  # and no 00000300.copy
    return [directory for directory in numbered if at_most is None or int(directory.name) <= at_most]
