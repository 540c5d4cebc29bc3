"""The tokenizer of a trained model: an export's own, or the one above a checkpoint that its commit.json names."""

import contextlib
import os
from pathlib import Path

from stages.lib import manifest
from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.tokenizer import prompt_tokenizer


def text_of(trained, tokenizer=None):
    """The `Text` of a `Trained`, by the manifest `tokenizer` where that is given.

    A checkpoint's is looked for in the directories above it. Raises UserError where it is not found, or is another's.
    """
    if tokenizer is not None and trained.tokenizer not in (None, _digest_of(tokenizer)):
        raise UserError(f"--tokenizer {tokenizer} must be the tokenizer of {trained.directory}, and is another")
    if trained.commit is None:
        known = tokenizer is None or trained.tokenizer is not None  # an export brings a tokenizer, and its template
        found = prompt_tokenizer.of_directory(trained.directory) if known else prompt_tokenizer.of_manifest(tokenizer)
    else:
        found = prompt_tokenizer.of_manifest(tokenizer or _tokenizer_above(trained), _bos_added(trained))
    if found.learnt > trained.vocab_size:
        raise UserError(
            f"the tokenizer must have at most the {trained.vocab_size} ids of the model {trained.directory}, and has "
            f"{found.learnt}"
        )
    return found


def _digest_of(tokenizer):
    try:
        return manifest.read(tokenizer).digest
    except UserError as error:
        raise UserError(f"--tokenizer must be a tokenizer's manifest: {error}") from None


def _tokenizer_above(trained):
    found = _above(trained.directory, "tokenizers", trained.tokenizer)
    if found is None:
        raise UserError(
            f"no directory above {trained.directory} holds the model's tokenizer as tokenizers/NAME/manifest.json; "
            "name its manifest with --tokenizer"
        )
    return found


def _bos_added(trained):
    corpus = _above(trained.directory, "tokens", trained.commit.get("corpus"))
    if corpus is None:
        logger.warning("the corpus of %s is not found: BOS is put before a prompt", trained.directory)
        return True
    return manifest.read(corpus).identity["tokenizer"]["bos_added"]


def _above(place, kind, digest):
    """The manifest kind/NAME/manifest.json of a digest in one of the directories above `place`; None without one."""
    # both as written and behind symbolic links: run directories may lie on another disk
    for parent in dict.fromkeys([*Path(os.path.abspath(place)).parents, *place.resolve().parents]):
        for path in sorted(parent.glob(f"{kind}/*/manifest.json")):
            with contextlib.suppress(UserError):
                if manifest.read(path).digest == digest:
                    return path
    return None
