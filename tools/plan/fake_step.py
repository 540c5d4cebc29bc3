"""The training step itself, run without memory or other ranks, and the log of what it allocates.

The model, its sharding, activation checkpointing and optimizer are built by the functions that the trainer calls, under
FakeTensorMode: tensors have shapes and no data. The process group is torch's fake one, of the planned number of ranks;
this process is rank 0, whose shards are the largest.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.distributed.fsdp import FSDPModule
from torch.testing._internal.distributed.fake_pg import FakeStore

from stages.lib.distributed import collectives, row_exchange
from stages.lib.model import experts, loss, transformer
from stages.lib.model.transformer import Transformer
from stages.lib.training import cuda_graphs, parallelize
from stages.lib.training.objectives.dpo import Dpo
from stages.lib.training.optimizers import adamw, muon, optimizer, registry
from stages.lib.training.parallelize import Outputs
from stages.lib.training.settings.recipe import ActivationCheckpointingRecipe
from stages.lib.training.state import State
from stages.lib.training.step import Stepper
from tools.plan import allocations
from tools.plan.allocations import AllocationLog
from tools.plan.subject import Subject

CPU = torch.device("cpu")
DISTINCT_MICRO_BATCHES = 3
"""The first micro-batch of a step, those that accumulate gradients, and the last one, which reduces them."""


@dataclass(frozen=True)
class FakeStep:
    """Allocations of a step, and the content of its checkpoint."""

    log: AllocationLog

    checkpoint: tuple[int, int]
    """Bytes of a checkpoint: (this rank's share, all ranks)."""

    num_trained: int
    """Number of parameters that are trained, over all ranks."""


def take(subject: Subject, is_gpu: bool) -> FakeStep:
    """Take a step after the first. `is_gpu`: choose kernels as on a GPU.

    Raises UserError as a training does for a sharding that does not fit the ranks.
    """
    recipe = dataclasses.replace(subject.recipe, **_in_place_of(subject))
    subject = dataclasses.replace(subject, recipe=recipe)
    with _fake_ranks(subject), FakeTensorMode(allow_non_fake_inputs=True), _substitutes(is_gpu):
        log = AllocationLog(is_gloo=not is_gpu)
        with log.resizes(), log:
            parallelize.check(recipe, subject.where, CPU)
            state = State(recipe, recipe.model, recipe.vocab_size, CPU, recipe.lora)
            stepper = Stepper(recipe, state, CPU, 0 if recipe.document_mask else None)
            if isinstance(stepper.objective, Dpo):
                stepper.objective.reference = torch.zeros(1, 2, dtype=torch.float64)
            _watch(log, state)
            batch = _batch(subject)
            # a step after the first has the optimizer's state from its beginning
            log.mark(registry.named_state(state.model, state.optimizer), allocations.OPTIMIZER)
            log.mark(list(map(collectives.local_tensor, state.model.parameters())), allocations.WEIGHTS)
            if recipe.cuda_graphs:
                cuda_graphs.allocate_gradients(state.model)
                log.mark([parameter.grad for parameter in state.model.parameters()], allocations.GRADIENTS)
            log.forget_past()
            stepper.take(0, *batch)
        return FakeStep(log, state.num_bytes(), state.num_trained())


def _in_place_of(subject: Subject) -> dict[str, Any]:
    """Return the keys that a fake step cannot have, with what it has in their place."""
    recipe = subject.recipe
    keys: dict[str, Any] = {
        "steps": recipe.steps or 1000,
        "compile": False,
        "cpu_offload": False,
        "deterministic": False,
    }
    if recipe.activation_checkpointing.mode == "offload":  # the same, with the blocks' inputs elsewhere
        keys["activation_checkpointing"] = ActivationCheckpointingRecipe(mode="full")
    return keys


@contextlib.contextmanager
def _fake_ranks(subject: Subject) -> Iterator[None]:
    with mock.patch.dict(os.environ, {"LOCAL_WORLD_SIZE": str(subject.ranks_per_node)}):
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=subject.world_size)
        try:
            yield
        finally:
            dist.destroy_process_group()


@contextlib.contextmanager
def _substitutes(is_gpu: bool) -> Iterator[None]:
    """Replace what needs data, and what a GPU does otherwise than a CPU."""
    with contextlib.ExitStack() as stack:

        def replace(module: Any, name: str, value: Any) -> None:
            stack.enter_context(mock.patch.object(module, name, value))

        replace(parallelize, "mesh_of", _real(parallelize.mesh_of))
        offsets = "compute_local_shape_and_global_offset"
        replace(collectives, offsets, _real(getattr(collectives, offsets)))
        replace(row_exchange, "ranks_of", _real(row_exchange.ranks_of))
        replace(torch.nn.Module, "_apply", _applied(torch.nn.Module._apply))
        replace(experts, "looped_product", _balanced_product)
        replace(loss, "rows_at_a_time", len)  # thousands of calls without data would take most of the time
        if is_gpu:
            replace(adamw, "elements_at_a_time", lambda _: adamw.ON_GPU)
            replace(transformer, "mask_of", lambda *_: None)  # a BlockMask has a 16,384th of the elements
            replace(experts, "has_grouped_kernel", _has_grouped_kernel)
            replace(optimizer, "precise", torch.Tensor.float)
            replace(muon, "precision", lambda *_: torch.bfloat16)
        yield


def _real(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of a mesh, which is made of numbers: it runs without fake tensors."""

    def run(*arguments: Any) -> Any:
        with unset_fake_temporarily():
            return function(*arguments)

    return run


def _applied(apply: Any) -> Any:
    """Return `_apply` of modules, by which they move and convert: it cannot replace fake parameters."""

    def applied(module: torch.nn.Module, function: Any, *rest: Any, **options: Any) -> torch.nn.Module:
        if not isinstance(module, Transformer) or isinstance(module, FSDPModule):
            return apply(module, function, *rest, **options)
        made: dict[torch.nn.Parameter, torch.nn.Parameter] = {}  # a tied one stays tied
        for part in module.modules():
            for name, old in part._parameters.items():
                if old is not None and old not in made:
                    made[old] = torch.nn.Parameter(function(old.detach()), old.requires_grad)
                part._parameters[name] = None if old is None else made[old]
        return module

    return applied


def _has_grouped_kernel(x: torch.Tensor, matrices: torch.Tensor) -> bool:
    return x.dtype == torch.bfloat16 and not any(size % 8 for size in matrices.shape[1:])


def _balanced_product(x: torch.Tensor, matrices: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Multiply as many rows by each matrix: without data, nobody knows the sizes of the groups."""
    groups = zip(x.tensor_split(len(matrices)), matrices.unbind(), strict=True)
    return torch.cat([torch.nn.functional.linear(rows, matrix) for rows, matrix in groups])


def _batch(subject: Subject) -> tuple[np.ndarray, ...]:
    """Return this rank's arrays of a step, with at most as many micro-batches as differ in memory."""
    recipe = subject.recipe
    samples = recipe.micro_batch_size * min(subject.accumulation, DISTINCT_MICRO_BATCHES)
    if recipe.dpo is None:
        return (np.zeros((samples, recipe.seq_len), np.int32),) * 2
    return (*(np.zeros((samples, 2, recipe.seq_len), np.int32),) * 2, np.zeros(samples, np.int64))


def _watch(log: AllocationLog, state: State) -> None:
    """Tell the log of each part and segment of a step, by hooks of the modules."""
    trunk, optimizer = state.model.base_model, state.optimizer
    blocks: Any = trunk.layers

    def enter(segment: str, part: str) -> None:
        log.segment, log.part = segment, part

    def leave_trunk(_: Any, __: Any, output: Any) -> None:
        enter("loss", allocations.LOGITS)
        output[0].register_hook(lambda _: enter_backward())

    def enter_backward() -> None:
        enter("backward", allocations.ACTIVATIONS)
        torch.autograd.Variable._execution_engine.queue_callback(lambda: enter("update", allocations.OTHER))

    def enter_block(place: str, inputs: Any) -> None:
        enter(f"forward/{place}", allocations.ACTIVATIONS)
        log.mark(inputs[0], allocations.BLOCK_INPUTS)

    def leave_block(place: str, output: Outputs) -> None:
        if output[0].requires_grad:
            output[0].register_hook(lambda _: enter(f"backward/{place}", allocations.ACTIVATIONS))

    zero_grad = optimizer.zero_grad

    def marked_zero_grad() -> None:
        gradients = [parameter.grad for parameter in state.model.parameters() if parameter.grad is not None]
        log.mark(list(map(collectives.local_tensor, gradients)), allocations.GRADIENTS)
        zero_grad()

    trunk.register_forward_pre_hook(lambda *_: enter("embedding", allocations.ACTIVATIONS))
    trunk.register_forward_hook(leave_trunk)
    for number, block in enumerate(blocks):
        place = _place(number, len(blocks))
        block.register_forward_pre_hook(lambda _, inputs, place=place: enter_block(place, inputs))
        block.register_forward_hook(lambda _, __, output, place=place: leave_block(place, output))
    optimizer.zero_grad = marked_zero_grad  # type: ignore[method-assign]


def _place(number: int, count: int) -> str:
    """Return the name of a block's place among all: each of the two at both ends has its own."""
    if number < 2:
        return str(number)
    return str(number - count) if number >= count - 2 else "middle"
