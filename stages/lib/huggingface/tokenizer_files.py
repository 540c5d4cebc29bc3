"""The files of a tokenizer in an export: copies of its package, without the template of BOS if training had none.

A model that was tuned on conversations has their chat template beside them.
"""

import hashlib
import shutil
from pathlib import Path
from typing import Any

from stages.lib import files
from stages.lib.chat import template as chat_template
from stages.lib.manifest import Manifest

PACKAGE = "tokenizer.json"
COPIED = (PACKAGE, "special_tokens_map.json", "tokenizer.model")
WITHOUT_BOS = {"post_processor": None}
"""The change of tokenizer.json if training had no BOS: the template would put one before each text."""


def copy(directory: Path, tokenizer: Manifest, bos_added: bool, template: str | None = None) -> None:
    """Copy the files that exist to an export, and write the text of the chat template."""
    for path in _paths(tokenizer):
        shutil.copyfile(path, directory / path.name)
    if not bos_added:
        files.write_json(directory / PACKAGE, files.read_json_object(directory / PACKAGE) | WITHOUT_BOS)
    if template is not None:
        (directory / chat_template.FILE).write_bytes(template.encode())


def contents(tokenizer: Manifest, bos_added: bool, template: str | None = None) -> dict[str, Any]:
    """Return what the export must have: {name: content} of JSON files, {name: sha256} of others."""
    found: dict[str, Any] = {}
    for path in _paths(tokenizer):
        found[path.name] = files.read_json(path) if path.suffix == ".json" else files.sha256_file(path)
    if not bos_added:
        found[PACKAGE] |= WITHOUT_BOS
    if template is not None:
        found[chat_template.FILE] = hashlib.sha256(template.encode()).hexdigest()
    return found


def _paths(tokenizer: Manifest) -> list[Path]:
    return [tokenizer.output(name) for name in COPIED if name in tokenizer.identity["outputs"]]
