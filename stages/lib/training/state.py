"""The state that a training changes and a checkpoint holds: weights, optimizer state, the loss guard's counts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch

from stages.lib.distributed import local_shards
from stages.lib.model.initialize import initialize
from stages.lib.model.llama import Llama, ModelRecipe
from stages.lib.training import activation_checkpointing, sharding
from stages.lib.training.faults.loss_guard import LossGuard
from stages.lib.training.optimizers import registry

if TYPE_CHECKING:
    from stages.lib.training.initial import Initial
    from stages.lib.training.recipe import TrainRecipe


class State:
    """A Llama of `model_config`, sharded as `recipe` says, and its optimizer. All ranks make one together.

    `shard_group`: the ranks over which a parameter's shards lie. The weights are not set until `init_weights` or a
    load.
    """

    def __init__(self, recipe: TrainRecipe, model_config: ModelRecipe, vocab_size: int, device: torch.device) -> None:
        self.recipe = recipe
        torch.manual_seed(recipe.seed)
        torch.use_deterministic_algorithms(recipe.deterministic)
        if recipe.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # required for deterministic matrix products
        with torch.device("meta"):
            self.model = Llama(model_config, vocab_size)
        if recipe.dtype == "float64":
            self.model.double()
        activation_checkpointing.apply(self.model, recipe.activation_checkpointing)
        if recipe.compile:
            for block in self.model.base_model.layers:
                # the hooks of FSDP and StragglerTimer stay outside
                block.forward = torch.compile(block.forward)  # type: ignore[method-assign, arg-type]
        self.shard_group = sharding.shard(self.model, recipe, device)
        self.optimizer = registry.build(self.model, recipe.optimizer)
        self.loss_guard = LossGuard(recipe.loss_guard, device)

    def init_weights(self, initial: Initial | None = None) -> None:
        """Set the state before the first step: random weights, or those of `initial`."""
        self.optimizer.state.clear()
        self.loss_guard.reset()
        if initial is None:
            initialize(self.model, self.recipe.seed)
        else:
            initial.load(self.model, self._optimizer_state())

    def tensors(self) -> dict[str, Any]:
        """Return the nested tensors of a checkpoint; a load fills these tensors, except "rng", which is a copy."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self._optimizer_state(),
            "rng": torch.get_rng_state(),
            "loss_guard": self.loss_guard.tensors,
        }

    def _optimizer_state(self) -> dict[str, dict[str, torch.Tensor]]:
        return registry.named_state(self.model, self.optimizer)

    def num_parameters(self) -> int:
        """Return the number of parameters of the model, over all ranks."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    def num_bytes(self) -> tuple[int, int]:
        """Return the bytes of a checkpoint: (this rank's share, all ranks)."""
        width = next(self.model.parameters()).element_size()
        per_parameter = width + self.optimizer.state_bytes(width)
        local = sum(local_shards.local_tensor(parameter).numel() for parameter in self.model.parameters())
        return local * per_parameter, self.num_parameters() * per_parameter
