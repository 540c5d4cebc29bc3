"""The files of the model that a path holds, and their digest: `initial` in the identity of a run that starts from it.

Imports no torch. The path may be any that `find_model` finds. The files of a model that was not trained here are
hashed. That is slow for a large one, so their hashes may be kept by size and times of the file. ibm-fms and fms-fsdp
write

    checkpoints/step_1000_ckp          fms-fsdp while it trains: DCP, .metadata beside one .distcp file per rank
    checkpoints/step_1000_ckp.pth      fms-fsdp at the end: torch.save of {"model_state": state dict, "step": ...}
    model.pth, model.safetensors       ibm-fms: the state dict, in one file or in several of a directory

A format is an entry of `FORMATS` and has its reader in load_fms.py. metadata.pth and the state of fms-fsdp's data
loader, which lie beside the .distcp files, are not read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from stages.lib import files, manifest
from stages.lib.checkpoints.commit import COMMIT, complete_steps, directory_of, read_commit
from stages.lib.errors import UserError
from stages.lib.huggingface import weight_files
from stages.lib.huggingface.weight_files import CONFIG

KIND = "checkpoint of ibm-fms or fms-fsdp"
METADATA = ".metadata"
SAFETENSORS = (".safetensors",)
TORCH = (".pth", ".pt", ".bin")


def _dcp(path: Path) -> list[Path]:
    return [path / METADATA, *sorted(path.glob("*.distcp"))] if (path / METADATA).is_file() else []


def _files_with(suffixes: tuple[str, ...]) -> Callable[[Path], list[Path]]:
    def find(path: Path) -> list[Path]:
        if path.is_dir():
            return sorted(file for suffix in suffixes for file in path.glob(f"[!.]*{suffix}"))
        return [path] if path.suffix in suffixes and path.is_file() else []

    return find


# in this order: a DCP directory has metadata.pth as well
FORMATS: dict[str, Callable[[Path], list[Path]]] = {
    "dcp": _dcp,
    "safetensors": _files_with(SAFETENSORS),
    "torch": _files_with(TORCH),
}
"""{format: function that returns the files with the tensors of a path, [] if it has another format}"""


def find_fms(path: Path) -> tuple[str, list[Path]] | None:
    """Return the format of a checkpoint, a key of FORMATS, and its files; None if the path is not one."""
    torn = path.parent.name == "checkpoints" and path.name.isdecimal()  # one of ours that has no commit.json
    if torn or (path / COMMIT).exists() or (path / CONFIG).exists():
        return None
    for name, files_of in FORMATS.items():
        if files := files_of(path):
            return name, files
    return None


KEPT = "hashes.json"


def digest_of(path: Path | str, where: str, cache: Path | None = None, config: Path | None = None) -> str:
    """Return the digest of the model at a path. Raises UserError naming `where`, the key of the path.

    `cache`: the directory in which hashes of files are kept. `config`: the config.json of a model that does not hold
    it, whose content then counts as well.
    """
    path = Path(path)
    if (fms := find_fms(path)) is not None:
        paths = {"weights": path} if path.is_file() else {file.name: file for file in fms[1]}  # a file may be renamed
        return _digest_of_files(paths if config is None else {**paths, CONFIG: config}, cache)
    if config is not None:
        raise UserError(f"{where} {path} holds its own config; leave out {config}")
    if path.is_file():
        made = manifest.read(path)
        if "checkpoint" not in made.identity:
            return _digest_of_hf(path.parent, cache)
        return manifest.checkpoint_digest(made)
    if (path / CONFIG).is_file():
        return _digest_of_hf(path, cache)
    if (path / "checkpoints").is_dir() and (steps := complete_steps(path)):
        path = directory_of(path, steps[-1])
    if (path / COMMIT).is_file():
        return manifest.digest_of(read_commit(path)["files"])
    found_there = "holds none" if path.exists() else "does not exist"
    raise UserError(f"{where} must be the directory of a model or a model's manifest, and {path} {found_there}")


def _digest_of_hf(directory: Path, cache: Path | None) -> str:
    config = files.read_json(directory / CONFIG)
    tied = isinstance(config, dict) and config.get("tie_word_embeddings") is True
    names = weight_files.names_of(directory, tied)
    return _digest_of_files({name: directory / name for name in names}, cache)


def _digest_of_files(paths: Mapping[str, Path], cache: Path | None) -> str:
    if cache is None:
        return weight_files.digest(paths)
    with files.kept_hashes(cache / KEPT) as sha256:
        return weight_files.digest(paths, sha256)
