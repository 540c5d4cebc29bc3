"""The registry of objectives. docs/extend/objective.md tells how to add one."""

from collections.abc import Callable
from typing import Any

from stages.lib.model.model_recipe import ModelRecipe
from stages.lib.training.objectives import dpo, objective
from stages.lib.training.objectives.objective import Balance, Objective

BUILDERS: dict[str, Callable[[Any, Balance], Objective]] = {"next_token": objective.build_next_token, "dpo": dpo.build}
"""{name: function of the recipe of a training and the balance of its model's experts}; the recipe's property
`objective` chooses the entry."""


def build(recipe: Any, model_config: ModelRecipe) -> Objective:
    """Build the objective that the recipe of a training names, for a model of `model_config`."""
    return BUILDERS[recipe.objective](recipe, Balance(model_config))
