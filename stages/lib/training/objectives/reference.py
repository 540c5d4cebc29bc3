"""The log-probabilities of all pairs by the initial model, computed once before the first step.

A second model beside the one in training would need an eighth of its memory (bfloat16 beside float32 weights, gradients
and moments), and a forward pass in every step of every epoch. These numbers are constants, 16 bytes per pair. They are
kept in reference.bin of the run directory: its name is the digest of the recipe, the pairs and the initial model, so
that no other run reads them, and a restart continues after the last SAVE_EVERY forward passes.

The file holds a sha256 (32 bytes), then little-endian float64 [pairs, 2].
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
import torch.distributed as dist

from stages.lib import files
from stages.lib.distributed import collectives
from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.render.terminal import Progress

if TYPE_CHECKING:
    from stages.lib.model.transformer import Transformer
    from stages.lib.training.objectives.objective import Preparation

FILE = "reference.bin"
SAVE_EVERY = 64
"""Forward passes between two writes of the file."""

LogProbs = Callable[["Transformer", torch.Tensor, torch.Tensor, int | None], torch.Tensor]
"""Of (model, inputs, targets, document_end), see `dpo.sequence_log_probs`."""


class Pairs(Protocol):
    """Pairs by their number."""

    def __len__(self) -> int:
        """Return the number of pairs."""

    def read(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return inputs and targets of some pairs, int32 [pairs, 2, L] each."""


def find(training: Preparation, log_probs: LogProbs) -> torch.Tensor:
    """Return the log-probabilities of the pairs of the training's samples, float64 [pairs, 2] in CPU memory.

    What is missing is computed by the initial model, whose weights are then the training's. All ranks call it together.
    """
    pairs: Pairs = training.samples.pairs
    path = training.directory / FILE
    with collectives.raise_on_all_ranks():
        known = _read(path) if collectives.is_first_rank() else None
    known = collectives.broadcast_object(known)
    if len(known) < len(pairs):
        known = _compute(training, log_probs, pairs, known)
        _write(path, known)
    return torch.from_numpy(known)


def _compute(training: Preparation, log_probs: LogProbs, pairs: Pairs, known: np.ndarray) -> np.ndarray:
    """Return `known` with the rows of the other pairs. All ranks make the same number of forward passes."""
    model, size = training.model, training.micro_batch_size
    training.init_weights()
    progress = Progress("reference", len(pairs), len(known))
    rank, at_once = dist.get_rank(), size * dist.get_world_size()
    model.eval()
    for number, first in enumerate(range(len(known), len(pairs), at_once), 1):
        training.poll()
        # the last pair fills up
        batch = pairs.read(np.minimum(np.arange(size) + first + rank * size, len(pairs) - 1))
        inputs, targets = (torch.from_numpy(rows).long().to(training.device) for rows in batch)
        with torch.no_grad():
            found = _gathered(log_probs(model, inputs, targets, training.samples.document_end))
        known = np.concatenate([known, found[: len(pairs) - first]])
        if number % SAVE_EVERY == 0:
            _write(training.directory / FILE, known)
        if collectives.is_first_rank():
            progress.show(len(known), "pairs")
    model.train()
    training.reshard()
    return known


def _gathered(rows: torch.Tensor) -> np.ndarray:
    """Return the rows of all ranks, in the order of ranks."""
    found = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
    dist.all_gather(found, rows)
    return torch.cat(found).cpu().numpy()


def _read(path: Path) -> np.ndarray:
    """Return the rows of a file; none if it is missing or damaged."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return np.empty((0, 2))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    if hashlib.sha256(data[32:]).digest() != data[:32] or len(data) % 16:
        logger.warning("%s is damaged: the reference is computed again", path)
        return np.empty((0, 2))
    return np.frombuffer(data, "<f8", offset=32).reshape(-1, 2).copy()


def _write(path: Path, known: np.ndarray) -> None:
    """Write the file on the first rank."""
    with collectives.raise_on_all_ranks():
        if collectives.is_first_rank():
            data = known.astype("<f8").tobytes()
            with files.atomic(path) as file:
                file.write(hashlib.sha256(data).digest() + data)
