"""The files of a checkpoint that ibm-fms or fms-fsdp wrote, by its format. Imports no torch.

    checkpoints/step_1000_ckp          fms-fsdp while it trains: DCP, .metadata beside one .distcp file per rank
    checkpoints/step_1000_ckp.pth      fms-fsdp at the end: torch.save of {"model_state": state dict, "step": ...}
    model.pth, model.safetensors       ibm-fms: the state dict, in one file or in several of a directory

A format is an entry of `FORMATS` and has its reader in fms_readers.py. metadata.pth and the state of fms-fsdp's data
loader, which lie beside the .distcp files, are not read.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stages.lib.checkpoints.commit import COMMIT
from stages.lib.huggingface.weight_files import CONFIG

KIND = "checkpoint of ibm-fms or fms-fsdp"
METADATA = ".metadata"
SAFETENSORS = (".safetensors",)
TORCH = (".pth", ".pt", ".bin")


@dataclass(frozen=True, kw_only=True)
class Format:
    """A format of such checkpoints."""

    name: str
    files: Callable[[Path], list[Path]]
    """Return the files with the tensors of a path, [] if it has another format."""


def _dcp(path: Path) -> list[Path]:
    return [path / METADATA, *sorted(path.glob("*.distcp"))] if (path / METADATA).is_file() else []


def _files_with(suffixes: tuple[str, ...]) -> Callable[[Path], list[Path]]:
    def find(path: Path) -> list[Path]:
        if path.is_dir():
            return sorted(file for suffix in suffixes for file in path.glob(f"[!.]*{suffix}"))
        return [path] if path.suffix in suffixes and path.is_file() else []

    return find


# in this order: a DCP directory has metadata.pth as well
FORMATS = (
    Format(name="dcp", files=_dcp),
    Format(name="safetensors", files=_files_with(SAFETENSORS)),
    Format(name="torch", files=_files_with(TORCH)),
)


def find(path: Path) -> tuple[Format, list[Path]] | None:
    """Return the format of a checkpoint and its files; None if the path is not one."""
    torn = path.parent.name == "checkpoints" and path.name.isdecimal()  # one of ours that has no commit.json
    if torn or (path / COMMIT).exists() or (path / CONFIG).exists():
        return None
    for known in FORMATS:
        if files := known.files(path):
            return known, files
    return None
