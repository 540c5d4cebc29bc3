"""The inputs of a training, made by a stage before the trainer starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    import torch

    from stages.lib.model.lora_recipe import LoraRecipe
    from stages.lib.model.model_recipe import ModelRecipe
    from stages.lib.run_directory.run_identity import RunIdentity
    from stages.lib.training.initial import Initial
    from stages.lib.training.settings.recipe import TrainRecipe
    from stages.lib.training.validation import Validation


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run, and the device on which this rank trains it."""

    recipe: TrainRecipe
    model_config: ModelRecipe
    identity: RunIdentity
    device: torch.device
    initial: Initial | None = None
    """The model whose weights the run starts from, None for random weights."""

    lora: LoraRecipe | None = None
    """The adapters that are trained beside the initial model's weights, None to train the weights."""


class Samples(Protocol):
    """The training samples, by their number in the order of the run."""

    document_end: int | None

    def batch(self, samples: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return the arrays of samples that the objective reads, mostly inputs and targets: int32 [n, L] each."""

    def figures(self, samples: int) -> dict[str, Any]:
        """Return the figures of metrics.jsonl on the data after `samples` samples."""

    def described(self) -> dict[str, Any]:
        """Return the record of the data for a milestone's manifest."""


@dataclass(frozen=True, kw_only=True)
class TrainingData:
    """The samples to train on, and the validation split."""

    samples: Samples
    validation: Validation
