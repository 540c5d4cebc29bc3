"""The training step itself, run without memory or other ranks, and the log of what it allocates.

The model, its sharding, activation checkpointing and optimizer are built by the functions that the trainer calls, under
FakeTensorMode: tensors have shapes and no data. The process group is torch's fake one, of the planned number of ranks;
this process is rank 0, whose shards are the largest.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from stages.lib.distributed import collectives, row_exchange
from stages.lib.model import experts, flops, loss, transformer
from stages.lib.model.transformer import Transformer
from stages.lib.training import cuda_graphs, parallelize
from stages.lib.training.objectives.dpo import Dpo
from stages.lib.training.optimizers import adamw, muon, optimizer, registry
from stages.lib.training.parallelize import Outputs
from stages.lib.training.settings.recipe import ActivationCheckpointingRecipe
from stages.lib.training.state import State
from stages.lib.training.step import Stepper
from tools.plan.subject import Subject

CPU = torch.device("cpu")
DISTINCT_MICRO_BATCHES = 3
"""The first micro-batch of a step, those that accumulate gradients, and the last one, which reduces them."""

WEIGHTS, GRADIENTS, OPTIMIZER = "weights", "gradients", "optimizer"
GATHERED, REDUCED, ACTIVATIONS, LOGITS = "gathered_weights", "gradient_buffers", "activations", "logits"
OTHER = "other"
PARTS = (WEIGHTS, GRADIENTS, OPTIMIZER, GATHERED, REDUCED, ACTIVATIONS, LOGITS, OTHER)
"""Parts of a rank's memory. gathered_weights: whole parameters and the buffers of all-gathers. gradient_buffers: whole
gradients before they are reduced, and the buffers of reduce-scatters. logits: a chunk of them, their gradient, and the
gradient of the head until it is accumulated. other: of clipping and the optimizer."""

BLOCK_INPUTS = "block_inputs"
"""The input of each block: a part of the activations that mode `offload` keeps in CPU memory."""

Segments = dict[str, Counter[str]]
"""{name of a segment of the step: bytes by part at the moment of the segment in which most is allocated}"""


class AllocationLog(TorchDispatchMode):
    """Records which storages are allocated, resized and freed, and to which part of memory each belongs.

    A storage belongs to the part that is current when it is allocated (`part`), unless its use shows another one: the
    operators of FSDP's collectives do, or `mark`.
    """

    def __init__(self, is_gloo: bool) -> None:
        """`is_gloo`: count the copy that gloo makes for the time of a collective, too; NCCL makes none."""
        super().__init__()
        self.is_gloo = is_gloo
        self.part, self.segment = OTHER, "start"
        self.parts: list[str] = []  # of each storage, by its number
        self.changes: list[tuple[int, int, str]] = []  # (number of a storage, change in bytes, segment)
        self._numbers: dict[int, int] = {}  # of the storages that are allocated, by id
        self._sizes: dict[int, int] = {}  # of the same, by number

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator, and record the storages of its results."""
        result = operator(*args, **(kwargs or {}))
        if operator.namespace == "prim":  # most calls: the device of a tensor
            return result
        for tensor in (result,) if isinstance(result, torch.Tensor) else tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self._number(tensor)
        if operator is torch.ops.aten.logsumexp.default:
            self._transient(args[0], self.part)  # its kernel has the exponentials in memory
        if operator.namespace in ("c10d", "fsdp"):
            self._mark_collective(str(operator), args, kwargs or {})
        return result

    def mark(self, tensors: Any, part: str) -> None:
        """Let the storages of tensors belong to a part, from their allocation on."""
        for tensor in tree_leaves(tensors):
            if isinstance(tensor, torch.Tensor):
                self.parts[self._number(tensor)] = part

    def forget_past(self) -> None:
        """Drop the changes so far: what is allocated now is what the log begins with."""
        self.changes = [(number, size, "start") for number, size in self._sizes.items()]

    @contextlib.contextmanager
    def resizes(self) -> Iterator[None]:
        """Record as well what FSDP allocates and frees by resizing a storage, which no operator shows."""
        resize = torch.UntypedStorage.resize_

        def recorded(storage: torch.UntypedStorage, size: int) -> Any:
            result = resize(storage, size)
            if (number := self._numbers.get(id(storage))) is not None:
                self._change(number, size - self._sizes[number])
            return result

        torch.UntypedStorage.resize_ = recorded  # type: ignore[method-assign,assignment]
        try:
            yield
        finally:
            torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign]

    def segments(self, left_out: frozenset[str] = frozenset()) -> Segments:
        """Return the peak of each segment by part, of all parts but those `left_out`."""
        live: Counter[str] = Counter()
        total = 0
        peaks: Segments = {}
        peak_totals: dict[str, int] = {}
        for number, change, segment in self.changes:
            part = self.parts[number]
            if part in left_out:
                continue
            live[part] += change
            total += change
            if total > peak_totals.get(segment, -1):
                peak_totals[segment], peaks[segment] = total, live.copy()
        return peaks

    def _number(self, tensor: torch.Tensor) -> int:
        """Return the number of a tensor's storage, which is recorded if it is new."""
        local = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
        storage = local.untyped_storage()
        known = self._numbers.get(id(storage))
        if known is not None:
            return known
        number = len(self.parts)
        self.parts.append(self.part)
        self._numbers[id(storage)], self._sizes[number] = number, 0
        weakref.finalize(storage, self._freed, id(storage))
        self._change(number, storage.nbytes())
        return number

    def _freed(self, key: int) -> None:
        number = self._numbers.pop(key)
        self._change(number, -self._sizes[number])
        del self._sizes[number]

    def _change(self, number: int, change: int) -> None:
        self._sizes[number] += change
        self.changes.append((number, change, self.segment))

    def _mark_collective(self, name: str, args: Any, kwargs: dict[str, Any]) -> None:
        if name.startswith("c10d._allgather_base_"):
            self.mark(args[0], GATHERED)
            self._copy_for_gloo(args[0], GATHERED)
        elif name.startswith("c10d._reduce_scatter_base_"):
            self._copy_for_gloo(args[1], REDUCED)
        elif name.startswith("fsdp.split_with_sizes_copy"):
            self.mark(kwargs["out"], GATHERED)
        elif name.startswith("fsdp.chunk_cat"):
            self.mark([args[0], kwargs["out"]], REDUCED)

    def _copy_for_gloo(self, tensor: torch.Tensor, part: str) -> None:
        if self.is_gloo:
            self._transient(tensor, part)

    def _transient(self, like: torch.Tensor, part: str) -> None:
        """Record memory as large as a tensor that an operator allocates and frees, which no result shows."""
        self.parts.append(part)
        number = len(self.parts) - 1
        self.changes += [(number, like.nbytes, self.segment), (number, -like.nbytes, self.segment)]


@dataclass(frozen=True)
class FakeStep:
    """Allocations of a step, and the content of its checkpoint."""

    log: AllocationLog

    checkpoint: tuple[int, int]
    """Bytes of a checkpoint: (this rank's share, all ranks)."""

    num_trained: int
    """Number of parameters that are trained, over all ranks."""


def take(subject: Subject, gpu: int | None) -> FakeStep:
    """Take a step after the first. `gpu`: bytes of the GPU whose kernels are chosen; None: those of a CPU.

    Raises UserError as a training does for a sharding that does not fit the ranks.
    """
    recipe = dataclasses.replace(
        subject.recipe, steps=subject.recipe.steps or 1000, compile=False, cpu_offload=False, deterministic=False
    )
    if recipe.activation_checkpointing.mode == "offload":  # the same, with the blocks' inputs elsewhere
        recipe = dataclasses.replace(recipe, activation_checkpointing=ActivationCheckpointingRecipe(mode="full"))
    samples = recipe.micro_batch_size * min(subject.accumulation, DISTINCT_MICRO_BATCHES)
    rows: tuple[int, ...] = (samples, recipe.seq_len) if recipe.dpo is None else (samples, 2, recipe.seq_len)
    with _fake_ranks(subject), FakeTensorMode(allow_non_fake_inputs=True), _substitutes(subject, gpu):
        log = AllocationLog(is_gloo=gpu is None)
        with log.resizes(), log:
            parallelize.check(recipe, subject.where, CPU)
            state = State(recipe, recipe.model, recipe.vocab_size, CPU, recipe.lora)
            stepper = Stepper(recipe, state, CPU, 0 if recipe.document_mask else None)
            if isinstance(stepper.objective, Dpo):
                stepper.objective.reference = torch.zeros(1, 2, dtype=torch.float64)
            _watch(log, state)
            # a step after the first has the optimizer's state from its beginning
            log.mark(registry.named_state(state.model, state.optimizer), OPTIMIZER)
            log.mark(list(map(collectives.local_tensor, state.model.parameters())), WEIGHTS)
            if recipe.cuda_graphs:
                cuda_graphs.allocate_gradients(state.model)
                log.mark([parameter.grad for parameter in state.model.parameters()], GRADIENTS)
            log.forget_past()
            preferences = () if recipe.dpo is None else (np.zeros(samples, np.int64),)
            stepper.take(0, *(np.zeros(rows, np.int32),) * 2, *preferences)
        return FakeStep(log, state.num_bytes(), state.num_trained())


@contextlib.contextmanager
def _fake_ranks(subject: Subject) -> Iterator[None]:
    with mock.patch.dict(os.environ, {"LOCAL_WORLD_SIZE": str(subject.ranks_per_node)}):
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=subject.world_size)
        try:
            yield
        finally:
            dist.destroy_process_group()


def fused_update(*_: Any) -> None:
    """Stand for the one kernel of an update, which allocates nothing."""


def fused_losses(logits: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Stand for the kernels of the losses, which allocate next to nothing."""
    return torch.zeros((), device=logits.device), torch.zeros((), device=logits.device)


class FusedNorm(torch.autograd.Function):
    """Stand for a GPU's kernel of RMSNorm, which keeps its input and a number per row. That of the CPU keeps copies."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, _shape: Any, weight: torch.Tensor, _eps: float) -> torch.Tensor:
        """[..., D] -> [..., D]."""
        ctx.save_for_backward(x, weight, x.new_empty(x.shape[:-1], dtype=torch.float32))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        """[..., D] -> [..., D], and the weight's gradient."""
        x, weight, _ = ctx.saved_tensors
        return torch.empty_like(x), None, torch.empty_like(weight), None


class FusedActivation(torch.autograd.Function):
    """Stand for the compiled silu(gate) * up, which computes silu(gate) again in its backward pass."""

    @staticmethod
    def forward(ctx: Any, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """Twice [..., I] -> [..., I]."""
        ctx.save_for_backward(gate, up)
        return torch.empty_like(gate)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        """[..., I] -> twice [..., I]."""
        gate, up = ctx.saved_tensors
        return torch.empty_like(gate), torch.empty_like(up)


@contextlib.contextmanager
def _substitutes(subject: Subject, gpu: int | None) -> Iterator[None]:
    """Replace what needs data, and what a GPU does otherwise than a CPU."""
    with contextlib.ExitStack() as stack:

        def replace(module: Any, name: str, value: Any) -> None:
            stack.enter_context(mock.patch.object(module, name, value))

        uses_fsdp = parallelize.uses_fsdp(subject.recipe)
        replace(parallelize, "uses_fsdp", lambda _: uses_fsdp)  # cpu_offload is left out of the fake step
        replace(parallelize, "mesh_of", _real(parallelize.mesh_of))
        offsets = "compute_local_shape_and_global_offset"
        replace(collectives, offsets, _real(getattr(collectives, offsets)))
        replace(row_exchange, "ranks_of", _real(row_exchange.ranks_of))
        replace(torch.nn.Module, "_apply", _applied(torch.nn.Module._apply))
        replace(experts, "looped_product", _balanced_product)
        replace(loss, "rows_at_a_time", len)  # thousands of calls without data would take most of the time
        if gpu is not None:
            replace(loss, "chunk_size", lambda _, vocab_size: flops.loss_chunk(gpu, vocab_size))
            replace(loss, "losses_and_gradient", fused_losses)
            replace(torch.nn.functional, "rms_norm", FusedNorm.apply)
            if subject.recipe.compile:
                replace(transformer, "silu_times", FusedActivation.apply)
            replace(adamw, "has_fused_kernel", lambda parameter: parameter.dtype != torch.float64)
            replace(adamw, "fused", fused_update)
            replace(adamw, "scales_in_step", lambda _: True)
            if transformer.kernel_takes(getattr(torch, subject.recipe.dtype), subject.recipe.model.head_size):
                replace(transformer, "mask_of", lambda *_: None)  # Segments have a number per document
            replace(
                *(experts, "has_grouped_kernel"),
                lambda x, matrices: x.dtype == torch.bfloat16 and not any(size % 8 for size in matrices.shape[1:]),
            )
            replace(optimizer, "precision_of_norm", lambda _: torch.float32)
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
        fakes: dict[torch.nn.Parameter, torch.nn.Parameter] = {}  # a tied one stays tied
        for part in module.modules():
            for name, old in part._parameters.items():
                if old is not None and old not in fakes:
                    fakes[old] = torch.nn.Parameter(function(old.detach()), old.requires_grad)
                part._parameters[name] = None if old is None else fakes[old]
        return module

    return applied


def _balanced_product(x: torch.Tensor, matrices: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Multiply as many rows by each matrix: without data, nobody knows the sizes of the groups."""
    groups = zip(x.tensor_split(len(matrices)), matrices.unbind(), strict=True)
    return torch.cat([torch.nn.functional.linear(rows, matrix) for rows, matrix in groups])


def _watch(log: AllocationLog, state: State) -> None:
    """Tell the log of each part and segment of a step, by hooks of the modules."""
    trunk, optimizer = state.model.base_model, state.optimizer
    blocks: Any = trunk.layers

    def enter(segment: str, part: str) -> None:
        log.segment, log.part = segment, part

    def leave_trunk(_: Any, __: Any, output: Any) -> None:
        enter("loss", LOGITS)
        output[0].register_hook(lambda _: enter_backward())

    def enter_backward() -> None:
        enter("backward", ACTIVATIONS)
        torch.autograd.Variable._execution_engine.queue_callback(lambda: enter("update", OTHER))

    def enter_block(place: str, inputs: Any) -> None:
        enter(f"forward/{place}", ACTIVATIONS)
        log.mark(inputs[0], BLOCK_INPUTS)

    def leave_block(place: str, output: Outputs) -> None:
        if output[0].requires_grad:
            output[0].register_hook(lambda _: enter(f"backward/{place}", ACTIVATIONS))

    zero_grad = optimizer.zero_grad

    def marked_zero_grad() -> None:
        gradients = [parameter.grad for parameter in state.model.parameters() if parameter.grad is not None]
        log.mark(list(map(collectives.local_tensor, gradients)), GRADIENTS)
        zero_grad()

    trunk.register_forward_pre_hook(lambda *_: enter("embedding", ACTIVATIONS))
    trunk.register_forward_hook(leave_trunk)
    for number, block in enumerate(blocks):
        # each of the two at both ends has a place of its own
        place = str(number) if number < 2 else "middle"
        place = str(number - len(blocks)) if number >= max(2, len(blocks) - 2) else place
        block.register_forward_pre_hook(lambda _, inputs, place=place: enter_block(place, inputs))
        block.register_forward_hook(lambda _, __, output, place=place: leave_block(place, output))
    optimizer.zero_grad = marked_zero_grad  # type: ignore[method-assign]
