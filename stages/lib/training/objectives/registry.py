"""The registry of objectives. docs/extend/objective.md tells how to add one."""

from collections.abc import Callable
from typing import Any

from stages.lib.training.objectives import dpo, next_token
from stages.lib.training.objectives.objective import Objective

BUILDERS: dict[str, Callable[[Any], Objective]] = {"next_token": next_token.build, "dpo": dpo.build}
"""{name: function of the recipe of a training}; the recipe's property `objective` chooses the entry."""


def build(recipe: Any) -> Objective:
    """Build the objective that the recipe of a training names."""
    return BUILDERS[recipe.objective](recipe)
