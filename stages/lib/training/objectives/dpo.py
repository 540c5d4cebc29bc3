"""Direct preference optimization (DPO, arXiv 2305.18290): the chosen completion becomes likelier than the rejected one.

    reward = beta * ln(p(completion | prompt) / p of the initial model)
    loss = -ln sigmoid(reward of chosen - reward of rejected)

Names of figures are those of TRL's DPOTrainer. With label smoothing e the loss is that of conservative DPO,
-(1 - e) ln sigmoid(margin) - e ln sigmoid(-margin).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn.functional import logsigmoid

from stages.lib.model.loss import IGNORED
from stages.lib.model.transformer import documents_of
from stages.lib.training.objectives import reference
from stages.lib.training.objectives.balance import Balance
from stages.lib.training.objectives.objective import Objective, Preparation

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
        self.reference = reference.find(training, sequence_log_probs).to(training.device)

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
