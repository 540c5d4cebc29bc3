"""The model that a suite scores: an export, or a baseline, which is any causal model in safetensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.lib import files, manifest
from stages.lib.chat import template as chat_template
from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.manifest import CorpusManifest
from stages.lib.manifest_types import ScoredIdentity
from stages.lib.model.model_recipe import MAX_LAYERS
from stages.lib.scoring import inputs
from stages.lib.tokenizer.tokenizer import library_errors

CONFIG = "config.json"
POSITIONS = ("n_positions", "max_position_embeddings", "n_ctx")
UNKNOWN_POSITIONS = 2048
"""The keys of config.json for the number of positions, and the number without one, as in the harness."""

FILES = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja")
"""Files that a baseline is loaded from: its config, weights and tokenizer."""


@dataclass(frozen=True)
class ScoredModel:
    """A model in a directory."""

    directory: Path

    identity: ScoredIdentity
    """The keys of the scores' manifest that name the model."""

    tokenizer: Mapping[str, Any]
    """`bos`, `eos`, and `bos_added`: a text begins with BOS. A baseline's also has `prefix`, see encoding.prefix_of."""

    positions: int
    """The longest context that the model can have, in tokens."""

    trained_length: int | None = None
    """The sequence length of training, if it is known."""

    @property
    def has_template(self) -> bool:
        """True if the model's tokenizer has a chat template."""
        return chat_template.text_beside(self.directory) is not None

    def window(self, max_length: int | None) -> int:
        """Return the longest context that the model is scored with, in tokens. `max_length`: of the suite."""
        return min(self.positions, max_length or self.trained_length or self.positions)


def of_export(path: Path, corpus: CorpusManifest) -> ScoredModel:
    """Return the model of an export. Raises UserError unless it passed its parity check and is of the corpus."""
    export = manifest.read(path, "convert")
    inputs.check_unchanged(export)
    if export.identity["corpus"] != corpus.digest:
        raise UserError(f"--export {export.path} was trained on a different corpus than --corpus {corpus.path}")
    known: ScoredIdentity = {
        "export": export.digest,
        "step": export.identity["step"],
        "tokens": export.identity["tokens"],
    }
    tokenizer, length = corpus.identity["tokenizer"], export.identity["seq_len"]
    return ScoredModel(export.directory, known, tokenizer, _positions(export.directory), length)


def of_baseline(path: str, revision: str | None) -> ScoredModel:
    """Return the model of a directory, or of a repository on the Hub or in its cache.

    Its identity is a digest of its files. Raises UserError if it is missing, has weights that are no safetensors, or
    has no BOS token.
    """
    directory = Path(path) if Path(path).is_dir() else downloaded(path, revision)
    found = [file for pattern in FILES for file in directory.glob(pattern)]
    if not (directory / CONFIG).exists() or not any(file.suffix == ".safetensors" for file in found):
        raise UserError(f"baseline {path} lacks {CONFIG} or *.safetensors; name a directory with both")
    _check_layers(files.read_json_object(directory / CONFIG), directory / CONFIG)
    return ScoredModel(
        directory, {"baseline": digest_of_files(directory)}, _tokenizer(directory, path), _positions(directory)
    )


def digest_of_files(directory: Path, sha256: Callable[[Path], str] = files.sha256_file) -> str:
    """Return the digest of the files that a baseline is loaded from."""
    return manifest.digest_of({file.name: sha256(file) for pattern in FILES for file in directory.glob(pattern)})


def _check_layers(config: Any, where: Path) -> None:
    """Raise UserError for a number of layers that no model has: transformers makes each, before it reads weights.

    `config`: the content of config.json, of any architecture, or a mapping in it.
    """
    for key, value in config.items() if isinstance(config, dict) else ():
        if key.endswith(("layers", "layer")) and isinstance(value, (int, float)) and value > MAX_LAYERS:
            raise UserError(f"{where}: {key} must be at most {MAX_LAYERS:,}, got {value:,}")
        _check_layers(value, where)


def _positions(directory: Path) -> int:
    config = files.read_json_object(directory / CONFIG)
    return next((config[key] for key in POSITIONS if isinstance(config.get(key), int)), UNKNOWN_POSITIONS)


def downloaded(path: str, revision: str | None) -> Path:
    """Return the directory of a repository in the Hub's cache, after its files were downloaded, if they can be.

    Raises UserError if they are not there.
    """
    from huggingface_hub import snapshot_download

    try:
        directory = snapshot_download(path, revision=revision, allow_patterns=list(FILES))
    except Exception as error:  # of huggingface_hub, requests and the file system
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise UserError(
            f"baseline {path} must be a directory, or a repository on the Hub or in its cache: {reason}"
        ) from error
    logger.info("baseline %s is %s", path, directory)
    return Path(directory)


def _tokenizer(directory: Path, name: str) -> dict[str, Any]:
    from transformers import AutoTokenizer

    with library_errors(f"the tokenizer of baseline {name} cannot be loaded"):  # also errors of transformers
        tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
    if bos is None:
        raise UserError(f"the tokenizer of baseline {name} must have a BOS token, after which texts are scored")
    return {"bos": bos, "eos": eos, "prefix": bos, "bos_added": tokenizer.encode("a")[:1] == [bos]}
