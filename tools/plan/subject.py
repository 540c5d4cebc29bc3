"""The training whose plan is made: the keys of a run on which memory and time depend. Imports no torch."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from stages.lib import recipe as recipes
from stages.lib.model.architectures.registry import ARCHITECTURES
from stages.lib.model.lora_recipe import LoraRecipe
from stages.lib.model.model_recipe import ModelRecipe
from stages.lib.recipe import horizon, identity
from stages.lib.training.settings import requirements
from stages.lib.training.settings.recipe import DpoRecipe, TrainRecipe

OF_THE_DATA = (
    *("milestones", "weights", "data_stages", "packing", "initial"),
    *("epochs", "template", "loss_on", "too_long"),
)
"""Keys of pretrain and finetune that change neither the memory nor the time of a step."""


@dataclass(frozen=True, kw_only=True)
class PlannedRecipe(TrainRecipe):
    """The keys of pretrain and of finetune on which a step depends."""

    steps: int = horizon(None, minimum=1)
    """None for a fine-tuning of some epochs."""

    model: ModelRecipe = identity(variants=ARCHITECTURES)
    """The model's configuration."""

    vocab_size: int = identity(minimum=1)
    """Number of token ids."""

    lora: LoraRecipe | None = identity(None)
    """The adapters that are trained beside the frozen weights."""

    dpo: DpoRecipe | None = identity(None)
    """Preferences: a sample is two rows."""

    document_mask: bool = identity(False)
    """Restrict attention to the tokens of the same document."""

    @property
    def objective(self) -> str:
        """Name of the objective, see `objectives.registry`."""
        return "next_token" if self.dpo is None else "dpo"

    def check(self, where: str) -> None:
        """Raise UserError if the schedule does not fit into the steps, or float8 or CUDA graphs do not fit the keys."""
        if self.steps is not None:
            super().check(where)
        has_lora = self.lora is not None
        requirements.check(self, where, self.model, has_lora=has_lora, has_document_mask=self.document_mask)


@dataclass(frozen=True)
class Subject:
    """A training on a number of ranks."""

    recipe: PlannedRecipe
    world_size: int
    ranks_per_node: int
    where: str = "pretrain"
    """Name of the recipe in messages."""

    @property
    def accumulation(self) -> int:
        """Number of micro-batches per step and rank."""
        return self.recipe.global_batch_size // self.world_size // self.recipe.micro_batch_size

    def changed(self, **keys: Any) -> Subject:
        """Return the same training with other keys of its recipe."""
        return dataclasses.replace(self, recipe=dataclasses.replace(self.recipe, **keys))

    def check(self) -> None:
        """Raise UserError if the batch cannot be divided among the ranks."""
        self.recipe.check_ranks(self.world_size, self.where)


def load(stage: str, keys: dict[str, Any], model: dict[str, Any], vocab_size: int, where: str) -> PlannedRecipe:
    """Return the recipe of a run. `keys`: those of its training. Raises UserError for one that is not valid."""
    own = {key: value for key, value in keys.items() if key not in OF_THE_DATA}
    if stage == "finetune":
        own["document_mask"] = True  # examples in a sample do not attend to each other
    return recipes.load(PlannedRecipe, own | {"model": model, "vocab_size": vocab_size}, where)
