"""Direct preference optimization (DPO, arXiv 2305.18290): the chosen completion becomes likelier than the rejected one.

    reward = beta * ln(p(completion | prompt) / p of the initial model)
    loss = -ln sigmoid(reward of chosen - reward of rejected)

Names of figures are those of TRL's DPOTrainer. With label smoothing e the loss is that of conservative DPO,
-(1 - e) ln sigmoid(margin) - e ln sigmoid(-margin).

The log-probabilities of all pairs by the initial model, the reference, are computed once before the first step. A
second model beside the one in training would need an eighth of its memory (bfloat16 beside float32 weights, gradients
and moments), and a forward pass in every step of every epoch. These numbers are constants, 16 bytes per pair. They are
kept in reference.bin of the run directory: its name is the digest of the recipe, the pairs and the initial model, so
that no other run reads them, and a restart continues after the last SAVE_EVERY forward passes. The file holds a sha256
(32 bytes), then little-endian float64 [pairs, 2].
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.functional import logsigmoid

from stages.lib import files
from stages.lib.distributed import collectives
from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.model.loss import IGNORED
from stages.lib.model.transformer import documents_of
from stages.lib.render.terminal import Progress
from stages.lib.training.objectives.objective import Balance, Objective, Preparation

if TYPE_CHECKING:
    from stages.lib.model.experts import Routing
    from stages.lib.model.transformer import Transformer


class Dpo(Objective):
    """A unit is a pair. A batch is (inputs, targets) [samples, 2, L], chosen before rejected, and numbers [samples].

    A pair's number is its row of `reference`: ln p of both completions by the initial model, float64 [pairs, 2].
    """

    figures: tuple[str, ...] = (
        "loss",
        *("rewards/chosen", "rewards/rejected", "rewards/margins", "rewards/accuracies"),
        *("logps/chosen", "logps/rejected"),
    )
    validation_figures = figures[:5]
    rows_per_sample = 2

    def __init__(self, beta: float, label_smoothing: float = 0.0, balance: Balance | None = None) -> None:
        self.beta, self.label_smoothing, self.balance = beta, label_smoothing, balance or Balance()
        self.figures = (*self.figures, *self.balance.figures)
        self.reference = torch.empty(0, 2, dtype=torch.float64)

    def prepare(self, training: Preparation) -> None:
        """Read or compute the log-probabilities by the initial model."""
        self.reference = find_reference(training).to(training.device)

    def count(self, batch: Sequence[np.ndarray]) -> int:
        """Return the number of pairs."""
        return int(np.count_nonzero((batch[1] != IGNORED).any(axis=(1, 2))))

    def sums(
        self, model: Transformer, micro_batch: Sequence[torch.Tensor], document_end: int | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the sums of the loss and of the rewards, and of a sparse model's auxiliary loss."""
        inputs, targets, numbers = micro_batch
        log_probs, routing = _forward(model, inputs, targets, document_end)
        rewards = self.beta * (log_probs - self.reference[numbers])
        margins = rewards[:, 0] - rewards[:, 1]
        losses = -(1 - self.label_smoothing) * logsigmoid(margins) - self.label_smoothing * logsigmoid(-margins)
        is_pair = (targets != IGNORED).flatten(1).any(1)
        loss = (losses * is_pair).sum()
        figures = [losses, *rewards.unbind(1), margins, (margins > 0).double(), *log_probs.unbind(1)]
        sums = (torch.stack(figures).detach() * is_pair).sum(1)
        return self.balance.add(loss, sums, routing, 0.5 * is_pair.repeat_interleave(2))  # a pair is two rows


def sequence_log_probs(
    model: Transformer, inputs: torch.Tensor, targets: torch.Tensor, document_end: int | None
) -> torch.Tensor:
    """Return ln p of the targets of each row: int64 [samples, 2, L] -> float64 [samples, 2].

    They are summed in float64: rewards are small differences of sums over thousands of tokens.
    """
    return _forward(model, inputs, targets, document_end)[0]


def _forward(
    model: Transformer, inputs: torch.Tensor, targets: torch.Tensor, document_end: int | None
) -> tuple[torch.Tensor, Routing | None]:
    tokens = inputs.flatten(0, 1)
    log_probs, routing = model.log_probs(tokens, targets.flatten(0, 1), documents_of(tokens, document_end))
    return log_probs.double().sum(1).view(targets.shape[:2]), routing


def build(recipe: Any, balance: Balance) -> Dpo:
    """Build the objective of the recipe of a fine-tuning."""
    return Dpo(recipe.dpo.beta, recipe.dpo.label_smoothing, balance)


FILE = "reference.bin"
SAVE_EVERY = 64
"""Forward passes between two writes of the file."""


class Pairs(Protocol):
    """Preference pairs, indexed by their position in the data."""

    def __len__(self) -> int:
        """Return the number of pairs."""

    def read(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return inputs and targets of some pairs, int32 [pairs, 2, L] each."""


def find_reference(training: Preparation) -> torch.Tensor:
    """Return the log-probabilities of the pairs of the training's samples, float64 [pairs, 2] in CPU memory.

    What is missing is computed by the initial model, whose weights are then the training's. All ranks call it together.
    """
    pairs: Pairs = training.samples.pairs
    path = training.directory / FILE
    with collectives.raise_on_all_ranks():
        known = _read(path) if collectives.is_first_rank() else None
    known = collectives.broadcast_object(known)
    if len(known) < len(pairs):
        known = _compute(training, pairs, known)
        _write(path, known)
    return torch.from_numpy(known)


def _compute(training: Preparation, pairs: Pairs, known: np.ndarray) -> np.ndarray:
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
        inputs, targets = (torch.from_numpy(array).long().to(training.device) for array in batch)
        with torch.no_grad():
            rows = sequence_log_probs(model, inputs, targets, training.samples.document_end)
        of_ranks = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
        dist.all_gather(of_ranks, rows)
        known = np.concatenate([known, torch.cat(of_ranks).cpu().numpy()[: len(pairs) - first]])
        if number % SAVE_EVERY == 0:
            _write(training.directory / FILE, known)
        if collectives.is_first_rank():
            progress.show(len(known), "pairs")
    model.train()
    training.reshard()
    return known


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
