"""The state that a training changes and a checkpoint holds: weights, optimizer state, the loss guard's counts.

With LoRA the weights are frozen, and the adapters take their place in optimizer and checkpoints.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from stages.lib.distributed import collectives
from stages.lib.model.initialize import initialize, initialize_adapters
from stages.lib.model.lora import add_adapters
from stages.lib.model.model_recipe import ModelRecipe
from stages.lib.model.transformer import Transformer
from stages.lib.training import float8, parallelize
from stages.lib.training.optimizers import registry
from stages.lib.training.settings.recipe import LossGuardRecipe

if TYPE_CHECKING:
    from stages.lib.model.key_table import LoraRecipe
    from stages.lib.training.initial import Initial
    from stages.lib.training.settings.recipe import TrainRecipe


class LossGuard:
    """Decides whether a step is bad. `tensors` is its state, for the checkpoint."""

    def __init__(self, recipe: LossGuardRecipe, device: torch.device) -> None:
        """`device`: where losses are compared."""
        self.recipe = recipe
        self.tensors = {
            "losses": torch.full((recipe.window,), float("nan"), dtype=torch.float64, device=device),
            "bad_steps": torch.zeros((), dtype=torch.int64, device=device),
        }

    def is_bad(self, step: int, loss: torch.Tensor, norm: torch.Tensor) -> torch.Tensor:
        """Return 1.0 if the step must be skipped, else 0.0 (float32 scalar). `loss`, `norm`: float64 scalars."""
        bad = ~(torch.isfinite(loss) & torch.isfinite(norm))
        losses, bad_steps = self.tensors["losses"], self.tensors["bad_steps"]
        if self.recipe.spike is not None:
            known = ~losses.isnan()
            count = known.sum()
            mean = losses.nansum() / count
            deviation = ((losses - mean).square().nansum() / count).sqrt()
            bad |= (count * 2 >= self.recipe.window) & (loss > mean + self.recipe.spike * deviation)
        losses[step % self.recipe.window] = torch.where(bad, torch.nan, loss)
        torch.where(bad, bad_steps + 1, torch.zeros_like(bad_steps), out=bad_steps)
        return bad.float()

    def reset(self) -> None:
        """Restore the state before the first step."""
        self.tensors["losses"].fill_(torch.nan)
        self.reset_bad_steps()

    def reset_bad_steps(self) -> None:
        """Set the count of consecutive bad steps to 0, after a rollback."""
        self.tensors["bad_steps"].zero_()


class State:
    """A model of `model_config`, sharded as `recipe` says, and its optimizer. All ranks make one together.

    `shard_group`: the ranks over which a parameter's shards lie. The weights are not set until `init_weights` or a
    load. With `lora` only its adapters are trained, and `load_base` sets the frozen weights.
    """

    def __init__(
        self,
        recipe: TrainRecipe,
        model_config: ModelRecipe,
        vocab_size: int,
        device: torch.device,
        lora: LoraRecipe | None = None,
    ) -> None:
        self.recipe, self.lora = recipe, lora
        torch.manual_seed(recipe.seed)
        torch.use_deterministic_algorithms(recipe.deterministic)
        if recipe.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # required for deterministic matrix products
        with torch.device("meta"):
            self.model = Transformer(model_config, vocab_size)
        if recipe.dtype == "float64":
            self.model.double()
        if recipe.weights_dtype == "bfloat16":
            self.model.bfloat16()
        if lora is not None:
            if recipe.dtype == "bfloat16":
                self.model.bfloat16()  # what is frozen needs no more precision than the forward pass has
            self._dropout_rows = add_adapters(self.model, lora, recipe.seed)
            self._has_base = False
        if recipe.float8:
            float8.apply(self.model)
        if recipe.dtype == "bfloat16" and not parallelize.uses_fsdp(recipe):
            parallelize.cast_weights(self.model)
        parallelize.apply_activation_checkpointing(self.model, recipe.activation_checkpointing)
        if recipe.compile:
            for block in self.model.base_model.layers:
                # the hooks of FSDP and StragglerTimer stay outside
                block.forward = torch.compile(block.forward)  # type: ignore[method-assign, arg-type]
        self.shard_group = parallelize.shard(self.model, recipe, device)
        self.optimizer = registry.build(self.model, recipe.optimizer)
        self.loss_guard = LossGuard(recipe.loss_guard, device)

    def init_weights(self, initial: Initial | None = None) -> None:
        """Set the state before the first step: random weights, or those of `initial`."""
        self.optimizer.state.clear()
        self.loss_guard.reset()
        if self.lora is not None:
            assert initial is not None
            initialize_adapters(self._trained(), self.recipe.seed)
            self.load_base(initial)
        elif initial is None:
            initialize(self.model, self.recipe.seed)
        else:
            initial.load(self.model, self._optimizer_state())

    def load_base(self, initial: Initial | None) -> None:
        """Set the weights that LoRA freezes, once: no step changes them, and no checkpoint holds them."""
        if self.lora is not None and not self._has_base:
            assert initial is not None
            initial.load_frozen((name, p) for name, p in self.model.named_parameters() if not p.requires_grad)
            self._has_base = True

    def set_rows(self, numbers: Sequence[int]) -> None:
        """Set the numbers within the run of the next forward pass's rows, on which LoRA's dropout depends."""
        if self.lora is not None:
            self._dropout_rows.set(numbers)

    def _trained(self) -> list[tuple[str, torch.nn.Parameter]]:
        return [(name, parameter) for name, parameter in self.model.named_parameters() if parameter.requires_grad]

    def tensors(self) -> dict[str, Any]:
        """Return the nested tensors of a checkpoint; a load fills these tensors, except "rng", which is a copy."""
        weights = self.model.state_dict()
        if self.lora is not None:
            weights = {name: weights[name] for name, _ in self._trained()}
        return {
            "model" if self.lora is None else "adapter": weights,
            "optimizer": self._optimizer_state(),
            "rng": torch.get_rng_state(),
            "loss_guard": self.loss_guard.tensors,
        }

    def _optimizer_state(self) -> dict[str, dict[str, torch.Tensor]]:
        return registry.named_state(self.model, self.optimizer)

    def num_parameters(self) -> int:
        """Return the number of parameters of the model, over all ranks."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    def num_trained(self) -> int:
        """Return the number of parameters that are trained, over all ranks: without LoRA all."""
        return sum(parameter.numel() for _, parameter in self._trained())

    def num_bytes(self) -> tuple[int, int]:
        """Return the bytes of a checkpoint: (this rank's share, all ranks)."""
        local = total = 0
        for _, parameter in self._trained():
            width = parameter.element_size() + self.optimizer.state_bytes(parameter)
            local += collectives.local_tensor(parameter).numel() * width
            total += parameter.numel() * width
        return local, total
