"""The directory of an export: made empty before the files are written, and filled when all of them passed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from stages.lib import files, manifest
from stages.lib.chat import template as chat_template
from stages.lib.errors import UserError
from stages.lib.tokenizer.tokenizer import MODEL

KEPT = ".manifest.json"
PARITY = "parity.json"
CARD, CARD_MANIFEST = "README.md", "card.json"
OF_SOME = (chat_template.FILE, MODEL)
"""Files that some exports have, and a later one in the same directory need not."""

ADAPTER = "adapter"
"""The folder of LoRA's adapters, if they are exported beside the merged model."""


def begin(directory: Path, output: Path) -> Path:
    """Delete an earlier export, manifest first, and make an empty directory for the new one inside of it."""
    partial = directory / ".partial"
    try:
        output.unlink(missing_ok=True)
        directory.mkdir(parents=True, exist_ok=True)
        for pattern in (KEPT, PARITY, CARD, *OF_SOME, "model*.safetensors", "model.safetensors.index.json"):
            for path in directory.glob(pattern):
                path.unlink()
        for folder in (partial, directory / ADAPTER):
            shutil.rmtree(folder, ignore_errors=True)
        partial.mkdir()
    except OSError as error:
        raise UserError(f"--output {output} must be in a directory that can be written: {error.strerror}") from None
    return partial


def publish(partial: Path, directory: Path) -> dict[str, Any]:
    """Sync the files of `partial` to the disk and move them to `directory`; returns the manifest's outputs.

    parity.json is not one of them: its figures depend on the machine's rounding, and equal weights have one digest.
    """
    outputs = {}
    mode = (partial / PARITY).stat().st_mode  # safetensors lets only the owner read
    for path in sorted(path for path in partial.rglob("*") if path.is_file()):
        path.chmod(mode)
        with open(path, "rb") as file:
            os.fsync(file.fileno())
        name = path.relative_to(partial).as_posix()
        if name != PARITY:
            outputs[name] = manifest.describe(path)
        (directory / name).parent.mkdir(exist_ok=True)
        os.replace(path, directory / name)
    for folder in {(directory / name).parent for name in outputs}:
        files.sync_directory(folder)
    return outputs
