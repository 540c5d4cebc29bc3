"""The interface of an objective, the auxiliary loss of a sparse model in it, and next-token prediction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from stages.lib.model.loss import IGNORED
from stages.lib.model.transformer import documents_of

if TYPE_CHECKING:
    from stages.lib.model.experts import Routing
    from stages.lib.model.model_recipe import ModelRecipe
    from stages.lib.model.transformer import Transformer
    from stages.lib.training.settings.recipe import TrainRecipe


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """A training before its weights are loaded, as an objective sees it."""

    samples: Any
    """The training samples, `trainer.Samples`."""

    model: Transformer
    device: torch.device
    micro_batch_size: int
    directory: Path
    """The run directory."""

    init_weights: Callable[[], None]
    """Sets the weights with which the run begins."""

    reshard: Callable[[], None]
    """Frees parameters that forward passes without a backward pass gathered."""

    poll: Callable[[], None]
    """Call it before each forward pass: it restarts the watchdog's clock, and may raise StopRequested."""


class Objective:
    """The loss that a training minimizes: a mean over units, such as targets or pairs. Subclasses override it."""

    figures: tuple[str, ...] = ("loss",)
    """Names of the figures in metrics.jsonl, each a mean over units like the loss, which is the first."""

    validation_figures: ClassVar[tuple[str, ...]] = ("loss",)
    """Names of those that the validation split is scored by."""

    rows_per_sample: ClassVar[int] = 1
    """Rows of seq_len tokens in a sample."""

    def prepare(self, training: Preparation) -> None:
        """Compute what the steps need besides their batches; all ranks call it once. It may raise StopRequested."""

    def count(self, batch: Sequence[np.ndarray]) -> int:
        """Return the number of units of this rank's share of a batch."""
        raise NotImplementedError

    def sums(
        self, model: Transformer, micro_batch: Sequence[torch.Tensor], document_end: int | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (the sum to differentiate, float64 [figures]: the sums of `figures`) over the units of a micro-batch.

        `micro_batch`: the arrays of `Samples.batch` as int64 tensors [samples, ...]. A sample without targets fills up
        a batch, and must add 0. `document_end`: the token that ends a document, if attention stays within documents.
        """
        raise NotImplementedError


LOAD = "expert_load"


class Balance:
    """The part that the routers of a model have in an objective; of a dense model none."""

    def __init__(self, model_config: ModelRecipe | None = None) -> None:
        self.weight, self.figures = 0.0, tuple[str, ...]()
        if model_config is not None and model_config.router is not None:
            self.weight = model_config.router.aux_loss_weight
            num_loads = model_config.num_hidden_layers * model_config.router.num_experts
            self.figures = ("aux_loss", *(f"{LOAD}/{number}" for number in range(num_loads)))

    def add(
        self, loss: torch.Tensor, figures: torch.Tensor, routing: Routing | None, units: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (loss with the weighted auxiliary loss, `figures` with those of this class), all sums over units.

        `units`: the number of units in each row [B]. `figures`: float64. The load is the share of a layer's choices
        that an expert has: [num_hidden_layers, E], flattened.
        """
        if routing is None:
            return loss, figures
        aux_loss = (routing.aux_loss * units).sum()
        shares = routing.load.double() / routing.load.double().sum(-1, keepdim=True).clamp(min=1)
        loads = torch.einsum("bne,b->ne", shares, units.double())
        return loss + self.weight * aux_loss, torch.cat([figures, aux_loss.detach().double()[None], loads.flatten()])


def with_load(numbers: Mapping[str, Any], num_layers: int) -> dict[str, Any]:
    """Return the numbers of a step, with the load of the experts as lists by layer if the model has experts.

    `expert_load`: the share of the choices that each expert of a layer has. `expert_load_min`, `expert_load_max`: the
    smallest and largest one of all layers, relative to the share of equal loads.
    """
    others = {name: value for name, value in numbers.items() if not name.startswith(f"{LOAD}/")}
    loads = [value for name, value in numbers.items() if name not in others]
    if not loads or None in loads:
        return others
    size = len(loads) // num_layers
    layers = [[round(load, 4) for load in loads[first : first + size]] for first in range(0, len(loads), size)]
    return others | {LOAD: layers, f"{LOAD}_min": min(loads) * size, f"{LOAD}_max": max(loads) * size}


class NextToken(Objective):
    """The cross-entropy of each target, plus the z-loss.

    A unit is a target. A batch is (inputs, targets), [samples, L] each.
    """

    figures: tuple[str, ...] = ("loss", "z_loss")

    def __init__(self, z_loss: float = 0.0, balance: Balance | None = None) -> None:
        """`z_loss`: weight of the z-loss."""
        self.z_loss, self.balance = z_loss, balance or Balance()
        self.figures = (*self.figures, *self.balance.figures)

    def count(self, batch: Sequence[np.ndarray]) -> int:
        """Return the number of targets."""
        return int(np.count_nonzero(batch[1] != IGNORED))

    def sums(
        self, model: Transformer, micro_batch: Sequence[torch.Tensor], document_end: int | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the sums of cross-entropy and z-loss, and of a sparse model's auxiliary loss."""
        tokens, targets = micro_batch
        loss, z_loss, routing = model(tokens, targets, documents_of(tokens, document_end), self.z_loss)
        figures = torch.stack([loss.detach(), z_loss.detach()]).double()
        return self.balance.add(loss + z_loss, figures, routing, (targets != IGNORED).sum(1))


def build_next_token(recipe: TrainRecipe, balance: Balance) -> NextToken:
    """Build next-token prediction for a recipe."""
    return NextToken(recipe.z_loss, balance)
