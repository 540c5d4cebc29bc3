"""The training whose plan is made: the keys of a run on which memory and time depend. Imports no torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.lib import manifest
from stages.lib import recipe as recipes
from stages.lib.manifest_types import SplitName
from stages.lib.recipe import horizon, identity
from stages.lib.sources.entries import TRAIN, VALIDATION
from stages.lib.tokens import data_order
from stages.lib.training.settings.recipe import DpoRecipe, TrainRecipe
from tools.ablate.cell import CellRecipe
from tools.ablate.setting import OF_THE_DATA


@dataclass(frozen=True, kw_only=True)
class PlannedRecipe(CellRecipe):
    """The keys of pretrain and of finetune on which a step depends."""

    steps: int = horizon(None, minimum=1)
    """None for a fine-tuning of some epochs."""

    dpo: DpoRecipe | None = identity(None)
    """Preferences: a sample is two rows."""

    @property
    def objective(self) -> str:
        """Name of the objective, see `step.OBJECTIVES`."""
        return "next_token" if self.dpo is None else "dpo"

    def check(self, where: str) -> None:
        """Raise UserError if the schedule does not fit into the steps, or keys do not fit each other."""
        if self.steps is not None:
            TrainRecipe.check(self, where)
        self.check_requirements(where)


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


def by_source(keys: dict[str, Any], steps: int, tokens_per_sample: int, corpus: Path | None) -> dict[str, Any]:
    """Return {source: `tokens` that a pretraining reads of it, `epochs`}; epochs are None without the manifest.

    `keys`: those of the training: weights, data_stages, global_batch_size.
    """
    batch = keys["global_batch_size"]
    changes = [(stage["step"] * batch, stage["weights"]) for stage in keys.get("data_stages", ())]
    samples = data_order.from_history([(0, keys["weights"]), *changes]).taken(steps * batch)
    known = _tokens_of(corpus, TRAIN)
    by_name = {}
    for source, number in samples.items():
        tokens, has = number * tokens_per_sample, known.get(source)
        by_name[source] = {"tokens": tokens, "epochs": tokens / has if has else None}
    return by_name


def validation(
    recipe: TrainRecipe, keys: Mapping[str, Any], milestones: Sequence[int], corpus: Path | None = None
) -> dict[str, Any]:
    """Return the number of `evaluations`, the `validation_tokens` that each reads, and their time as a share of that of
    the steps, `validation_share`; {} of a tuning in epochs, whose steps are not known.

    The tokens are at most so many: without the corpus, and in tuning, the size of the split is not known.
    """
    if recipe.steps is None:
        return {}
    sources = set(keys["weights"]).union(*(stage["weights"] for stage in keys.get("data_stages", ())))
    known, most = _tokens_of(corpus, VALIDATION), recipe.validation_tokens(len(sources), milestones)
    tokens = sum(min(most, known.get(source, most)) for source in sources)
    return {
        "evaluations": recipe.num_evaluations(milestones, recipe.steps),
        "validation_tokens": tokens,
        "validation_share": recipe.validation_share(tokens, milestones),
    }


def _tokens_of(corpus: Path | None, split: SplitName) -> dict[str, int]:
    """Return {source: tokens of its split}; {} without the manifest."""
    if corpus is None or not corpus.is_file():
        return {}
    sources = manifest.read(corpus, "index").identity["sources"]
    return {name: source[split]["tokens"] for name, source in sources.items()}
