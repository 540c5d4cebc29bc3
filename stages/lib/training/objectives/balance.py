"""The auxiliary loss of a sparse model in an objective, and the load of its experts in the metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from stages.lib.model.load_balancing import Routing
    from stages.lib.model.model_recipe import ModelRecipe

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
    """Return the numbers of a step with the load of the experts as lists by layer, if there is one.

    `expert_load`: the share of the choices that each expert of a layer has. `expert_load_min`, `expert_load_max`: the
    smallest and largest one of all layers, relative to the share of equal loads.
    """
    made = {name: value for name, value in numbers.items() if not name.startswith(f"{LOAD}/")}
    loads = [value for name, value in numbers.items() if name not in made]
    if not loads or None in loads:
        return made
    size = len(loads) // num_layers
    layers = [[round(load, 4) for load in loads[first : first + size]] for first in range(0, len(loads), size)]
    return made | {LOAD: layers, f"{LOAD}_min": min(loads) * size, f"{LOAD}_max": max(loads) * size}
