"""Find the tokenizer of a model: an export's own, or the one that a checkpoint's commit.json names."""

import contextlib
import os
from pathlib import Path

from stages.lib import manifest
from stages.lib.checkpoints.find_model import FoundModel
from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.tokenizer import prompt_tokenizer


def text_of(model: FoundModel, tokenizer: Path | None = None) -> prompt_tokenizer.PromptTokenizer:
    """The `PromptTokenizer` of a model, by the manifest `tokenizer` if that is given.

    A checkpoint's tokenizer is searched in the directories above it. Raises UserError if it is not found, or is another
    tokenizer than that of the training.
    """
    if tokenizer is not None:
        try:
            digest = manifest.read(tokenizer, "train_tokenizer").digest
        except UserError as error:
            raise UserError(f"--tokenizer must be a tokenizer's manifest: {error}") from None
        if model.tokenizer not in (None, digest):
            raise UserError(f"--tokenizer {tokenizer} is not the tokenizer {model.directory} was trained with")
    if model.commit is not None:
        bos_added = True
        if corpus := _above(model.directory, "tokens", model.commit.get("corpus")):
            bos_added = manifest.read(corpus).identity["tokenizer"]["bos_added"]
        else:
            logger.warning("the corpus of %s is not found: BOS is added before a prompt", model.directory)
        text = prompt_tokenizer.of_manifest(tokenizer or _tokenizer_above(model), bos_added)
    elif tokenizer is None or model.tokenizer is not None:  # an export has a tokenizer, with its template
        text = prompt_tokenizer.of_directory(model.directory)
    else:
        text = prompt_tokenizer.of_manifest(tokenizer)
    if text.num_base_tokens > model.vocab_size:
        raise UserError(
            f"the tokenizer must have at most the {model.vocab_size} ids of the model {model.directory}, found "
            f"{text.num_base_tokens}"
        )
    return text


def directory_of(model: FoundModel, tokenizer: Path | None = None) -> Path:
    """The directory from which transformers loads the tokenizer of a model; arguments and refusals as of text_of."""
    if model.commit is None and (tokenizer is None or model.tokenizer is not None):
        return model.directory
    return (tokenizer or _tokenizer_above(model)).parent


def _tokenizer_above(model: FoundModel) -> Path:
    path = _above(model.directory, "tokenizers", model.tokenizer)
    if path is None:
        raise UserError(
            f"no directory above {model.directory} holds the model's tokenizer as tokenizers/NAME/manifest.json; "
            "name its manifest with --tokenizer"
        )
    return path


def _above(directory: Path, kind: str, digest: str | None) -> Path | None:
    """The manifest kind/NAME/manifest.json with a digest in a directory above `directory`; None if it is not found."""
    # both as written and with symbolic links resolved: run directories may lie on another disk
    for parent in dict.fromkeys([*Path(os.path.abspath(directory)).parents, *directory.resolve().parents]):
        for path in sorted(parent.glob(f"{kind}/*/manifest.json")):
            with contextlib.suppress(UserError):
                if manifest.read(path).digest == digest:
                    return path
    return None
