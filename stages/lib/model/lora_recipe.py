"""The recipe of LoRA adapters (arXiv 2106.09685), in peft's terms. Imports no torch."""

from dataclasses import dataclass
from typing import Literal

from stages.lib.errors import UserError
from stages.lib.model.key_table import KeyTable
from stages.lib.recipe import identity, shown

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The last names of the linear layers' modules in transformers, without the output head."""


@dataclass(frozen=True, kw_only=True)
class LoraRecipe:
    """LoRA: the weights are frozen, and pairs of small matrices beside some of them are trained."""

    rank: int = identity(minimum=1)
    """Rank of the adapters, peft's `r`."""

    alpha: float = identity(16.0, above=0)
    """The product of an adapter's matrices is multiplied by `alpha / rank`."""

    dropout: float = identity(0.0, minimum=0, maximum=0.9)
    """Probability with which an element of an adapter's input is set to zero in training. The mask depends on seed,
    step and the sample's place in the global batch, so it is the same on any number of ranks and after a restart."""

    target_modules: list[str] | Literal["all-linear"] = identity("all-linear")
    """Hugging Face's names of the projections that have an adapter: q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj,
    down_proj. all-linear: all of them that the model has. Embedding, output head, routers and experts have none."""

    @property
    def targets(self) -> tuple[str, ...]:
        """The names of the projections that have an adapter."""
        return PROJECTIONS if self.target_modules == "all-linear" else tuple(self.target_modules)

    def targets_of(self, table: KeyTable) -> list[str]:
        """The names of the projections of a model that have an adapter."""
        known = {part.projection for layer in table.layers for weight in layer for part in weight.parts}
        return [name for name in self.targets if name in known]

    def check_model(self, table: KeyTable, where: str) -> None:
        """Raise UserError if a named target is not a projection of this model."""
        if self.target_modules != "all-linear" and (missing := set(self.targets).difference(self.targets_of(table))):
            raise UserError(
                f"{where}.target_modules must be all-linear or some of {', '.join(PROJECTIONS)} that the model has, "
                f"got {shown(min(missing))}, which matches no module of it"
            )

    @property
    def scale(self) -> float:
        """The factor of an adapter's product."""
        return self.alpha / self.rank

    def check(self, where: str) -> None:
        """Raise UserError if a target is not a projection of the model, or there is none."""
        known = ", ".join(PROJECTIONS)
        if not self.targets:
            raise UserError(f"{where}.target_modules must be all-linear or have at least one of {known}, got none")
        for name in self.targets:
            if name not in PROJECTIONS:
                raise UserError(
                    f"{where}.target_modules must be all-linear or some of {known}, got {shown(name)}, which matches "
                    "no module"
                )
