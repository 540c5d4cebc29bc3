"""One optimizer step: forward and backward passes over the micro-batches, clipping, the loss guard, the update."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from stages.lib.training import parallelize
from stages.lib.training.cuda_graphs import MicroBatchGraph
from stages.lib.training.objectives import dpo, objective
from stages.lib.training.objectives.objective import Balance, Objective
from stages.lib.training.optimizers import registry
from stages.lib.training.optimizers.optimizer import clip_gradients, set_learning_rate
from stages.lib.training.optimizers.schedule import learning_rate
from stages.lib.training.settings.recipe import TrainRecipe
from stages.lib.training.state import State

OBJECTIVES: dict[str, Callable[[Any, Balance], Objective]] = {
    "next_token": objective.build_next_token,
    "dpo": dpo.build,
}
"""{name: function of the recipe of a training and the balance of its model's experts}; the recipe's property
`objective` chooses the entry."""


class Stepper:
    """Takes steps.

    On a GPU the host waits for the device in the first forward pass, where `Trunk.rotation` copies its tables; with a
    mask by document or a window once per micro-batch, for the lengths of the documents; with cpu_offload for the
    gradients of each step; and in a sparse model once per layer if torch has no grouped product.
    """

    def __init__(
        self,
        recipe: TrainRecipe,
        state: State,
        device: torch.device,
        document_end: int | None = None,
        steps_before: int = 0,
    ) -> None:
        """`document_end`: the token that ends a document, if attention stays within documents.

        `steps_before`: steps of the learning-rate schedule that were taken before this run.
        """
        self.recipe, self.state, self.device = recipe, state, device
        self.document_end, self.steps_before = document_end, steps_before
        self.objective = OBJECTIVES[recipe.objective](recipe, Balance(state.model.recipe))
        self.names = (*self.objective.figures, "grad_norm", "bad", "bad_steps")
        """Names of the numbers of a step."""
        # the plan of a run takes a step with fake tensors of a CPU
        is_graphed = recipe.cuda_graphs and device.type == "cuda"
        self.graph = MicroBatchGraph(self._passes, state.model) if is_graphed else None

    def learning_rate(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        before, recipe = self.steps_before, self.recipe
        return learning_rate(recipe.schedule, recipe.optimizer.learning_rate, before + step, before + recipe.steps)

    def take(self, step: int, *batch: np.ndarray) -> torch.Tensor:
        """Take step `step`, counted from 0, on this rank's share of a batch: the arrays of `Samples.batch`.

        Returns the numbers `names` as a float64 tensor on the device: `bad` is 1 if the step was skipped.
        """
        model, optimizer, loss_guard = self.state.model, self.state.optimizer, self.state.loss_guard
        set_learning_rate(optimizer.param_groups, self.learning_rate(step))
        sums = torch.zeros(len(self.objective.figures), dtype=torch.float64, device=self.device)
        # the units of the whole global batch, before the backward pass: ranks may mask different numbers of targets
        # torch.full is a kernel; torch.tensor(..., device=...) would wait for the device
        count = torch.full((), float(self.objective.count(batch)), dtype=torch.float64, device=self.device)
        dist.all_reduce(count)
        count.clamp_(min=1)
        micro_batches = list(zip(*map(self._split, batch), strict=True))
        num_rows = len(batch[0]) * self.objective.rows_per_sample
        row = (step * dist.get_world_size() + dist.get_rank()) * num_rows  # this rank's first one within the run
        for number, micro_batch in enumerate(micro_batches):
            end = row + len(micro_batch[0]) * self.objective.rows_per_sample
            self.state.set_rows(range(row, end))
            row = end
            parallelize.set_gradient_sync(model, self.recipe.sharding, number == len(micro_batches) - 1)
            sums += (self.graph or self._passes)(micro_batch, count)
        norm = clip_gradients(optimizer, self.recipe.optimizer.max_grad_norm, self.state.shard_group)
        dist.all_reduce(sums)
        means = sums / count
        bad = loss_guard.is_bad(step, means[0], norm.to(means.device))
        registry.skip_if(optimizer, bad)
        optimizer.step()
        (self.graph.zero_gradients if self.graph is not None else optimizer.zero_grad)()
        others = [norm.to(means.device), bad.double(), loss_guard.tensors["bad_steps"].double()]
        return torch.cat([means, torch.stack(others)])

    def _passes(self, micro_batch: Sequence[torch.Tensor], count: torch.Tensor) -> torch.Tensor:
        """Run the forward and the backward pass of a micro-batch; return its figures. `count`: see `take`."""
        loss, figures = self.objective.sums(self.state.model, micro_batch, self.document_end)
        (loss / count.to(loss.dtype)).backward()
        return figures

    def _split(self, rows: np.ndarray) -> tuple[torch.Tensor, ...]:
        moved = torch.from_numpy(np.ascontiguousarray(rows))
        if self.device.type == "cuda":
            moved = moved.pin_memory().to(self.device, non_blocking=True)
        return moved.long().split(self.recipe.micro_batch_size)
