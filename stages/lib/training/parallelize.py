"""A model for many ranks and little memory: sharding with FSDP2, and activation checkpointing.

FSDP's names are in brackets.

    full          parameters, gradients and optimizer state over all ranks, ZeRO-3 [FULL_SHARD]
    grad          as full, but gathered parameters stay until the backward pass used them, ZeRO-2: faster, more memory
                  [SHARD_GRAD_OP]
    hybrid-full   full within groups of `shard_degree` ranks; the groups are replicas, HSDP [HYBRID_SHARD]
    hybrid-grad   grad within such groups [_HYBRID_SHARD_ZERO2]
    none          every rank holds everything, and only gradients are reduced, as in DDP [NO_SHARD]

All are one or two dimensions of a device mesh, so a checkpoint of one loads under any other.

On one rank there is nothing to gather, but FSDP's mixed precision would still copy weights and gradients through its
buffers: 37 bytes per parameter in the first micro-batch of a step, 49 in each further one, counted with torch 2.13. So
there FSDP is left out, and each layer casts its float32 weights when it uses them. Both cast the same values to the
same bits, and both add up bfloat16 gradients in float32.

A checkpointed block keeps its input, and in mode `selective` some results, and recomputes the other activations in its
backward pass. No mode changes a gradient: the same kernels run again on the same numbers.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.nn import functional
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from stages.lib.errors import UserError
from stages.lib.model.transformer import Transformer
from stages.lib.training.settings.recipe import ActivationCheckpointingRecipe

if TYPE_CHECKING:
    from stages.lib.training.settings.recipe import TrainRecipe


def check(recipe: TrainRecipe, where: str, device: torch.device) -> None:
    """Raise UserError if the recipe's sharding does not fit the number of ranks or the device."""
    world_size = dist.get_world_size()
    if recipe.cpu_offload and device.type == "cpu":
        raise UserError(f"{where}.cpu_offload must be false without a GPU, got true")
    if not recipe.sharding.startswith("hybrid"):
        if recipe.shard_degree is not None:
            raise UserError(
                f"{where}.shard_degree must be left out except for hybrid-full and hybrid-grad, "
                f"got {recipe.shard_degree} with sharding {recipe.sharding}"
            )
        return
    ranks = shard_degree(recipe)
    if ranks < 2 or world_size % ranks or world_size // ranks < 2:
        fitting = ", ".join(str(n) for n in range(2, world_size // 2 + 1) if world_size % n == 0)
        raise UserError(
            f"{where}.sharding {recipe.sharding} needs at least two groups of at least two ranks: {where}.shard_degree "
            f"(by default the ranks of a node) must be one of {fitting or 'none'} for {world_size} ranks, got {ranks}"
        )


def uses_fsdp(recipe: TrainRecipe) -> bool:
    """Return true if FSDP wraps the model: with several ranks, and to offload; else layers cast their weights."""
    return dist.get_world_size() > 1 or recipe.cpu_offload


class CastLinear(nn.Linear):
    """A linear layer whose weights are cast to the dtype of its input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., columns] -> [..., rows]."""
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return functional.linear(x, self.weight.to(x.dtype), bias)


class CastRMSNorm(nn.RMSNorm):
    """A norm whose weight is cast to the dtype of its input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., D] -> [..., D]."""
        return functional.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


class CastEmbedding(nn.Embedding):
    """An embedding in bfloat16: all layers after it take its dtype."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """int64 [B, L] -> bfloat16 [B, L, D]."""
        self.cast_weight = self.weight.bfloat16()
        return functional.embedding(tokens, self.cast_weight)


CASTING: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: CastLinear,
    nn.RMSNorm: CastRMSNorm,
    nn.Embedding: CastEmbedding,
}
"""{class: the same with casts}. A Float8Linear casts its weight anyway."""


def cast_weights(model: Transformer) -> None:
    """Let a model of float32 weights compute in bfloat16. Experts, adapters and the loss cast theirs anyway."""
    for module in model.modules():
        if type(module) in CASTING and module.weight.dtype != torch.bfloat16:  # frozen weights beside LoRA's are
            module.__class__ = CASTING[type(module)]


def shard_degree(recipe: TrainRecipe) -> int:
    """Return the number of ranks in a group of a hybrid sharding."""
    return recipe.shard_degree or int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def mesh_of(recipe: TrainRecipe, device: torch.device) -> DeviceMesh:
    """Return the device mesh of a sharding; parameters are sharded over its last dimension, `shard`."""
    world_size = dist.get_world_size()
    shape: tuple[int, ...]
    if recipe.sharding == "none":
        shape = (world_size, 1)
    elif recipe.sharding.startswith("hybrid"):
        shape = (world_size // shard_degree(recipe), shard_degree(recipe))
    else:
        shape = (world_size,)
    names = ("replicate", "shard")[-len(shape) :]
    return init_device_mesh(device.type, shape, mesh_dim_names=names)


def shard(model: Transformer, recipe: TrainRecipe, device: torch.device) -> dist.ProcessGroup:
    """Shard a model on the meta device over all ranks and allocate it; its weights are not yet set.

    Gradients are summed over the ranks, not averaged: the loss is divided by the tokens of the whole global batch.
    Returns the process group over which a parameter's shards lie, for norms. See `uses_fsdp`.
    """
    if not uses_fsdp(recipe):
        model.to_empty(device=device)
        if model.recipe.tie_word_embeddings:
            # to_empty gives each module a tensor of its own; FSDP's parameters stay tied
            model.head.weight = model.base_model.embedding.weight
        assert dist.group.WORLD is not None
        return dist.group.WORLD
    mesh = mesh_of(recipe, device)
    policy = MixedPrecisionPolicy()
    if recipe.dtype == "bfloat16":
        # inputs are bfloat16 by the embedding; FSDP would also round the rotation's tables, which are float32
        policy = MixedPrecisionPolicy(torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False)
    options: dict[str, Any] = {"mesh": mesh, "mp_policy": policy}
    options["offload_policy"] = CPUOffloadPolicy() if recipe.cpu_offload else OffloadPolicy()
    keep_gathered = recipe.sharding in ("grad", "hybrid-grad", "none")
    for block in model.base_model.layers:
        fully_shard(block, reshard_after_forward=not keep_gathered, **options)
    fully_shard(model, reshard_after_forward=False, **options)  # used again at once, by the backward pass
    register_fsdp_forward_method(model, "log_probs")
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo cannot sum without dividing otherwise
    model.to_empty(device="cpu" if recipe.cpu_offload else device)
    return mesh.get_group("shard")


def reshard(model: nn.Module) -> None:
    """Free gathered parameters. Call it after forward passes without a backward pass, before weights are set.

    Otherwise `named_parameters` gives the gathered ones, and the optimizer would keep state of them, too.
    """
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def set_gradient_sync(model: nn.Module, sharding: str, is_last: bool) -> None:
    """Let the next backward pass of a step reduce gradients over the ranks. `is_last`: that of the last micro-batch.

    Replicas are summed with the last one alone. Shards are with each: gradients that wait for the last micro-batch
    would be whole, 4 bytes per parameter of the model on each rank.
    """
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(is_last or sharding != "none")
        model.set_requires_all_reduce(is_last)


Outputs = tuple[torch.Tensor, torch.Tensor | None]
"""Of a block: see `Block.forward`."""


def apply_activation_checkpointing(model: Transformer, recipe: ActivationCheckpointingRecipe) -> None:
    """Checkpoint the blocks of a model. Call it before FSDP and torch.compile, so that they wrap the checkpoint.

    State-dict keys do not change. Raises UserError if the ratio is so small that no block is chosen.
    """
    if recipe.mode == "none":
        return
    contexts: dict[str, Any] = {}
    if recipe.mode == "selective":
        contexts = {"context_fn": _selective_contexts}
    blocks = model.base_model.layers
    for number in chosen(len(blocks), recipe.ratio if recipe.ratio is not None else 1.0):
        block = blocks[number]
        block.forward = functools.partial(_recomputed, block.forward, contexts)  # type: ignore[method-assign]
    if recipe.mode == "offload":
        forward = model.base_model.forward
        model.base_model.forward = functools.partial(_offloading, forward)  # type: ignore[method-assign]


def chosen(layers: int, ratio: float) -> list[int]:
    """Return the numbers of round(ratio * layers) blocks, evenly spread, as fms-fsdp spreads them.

    Raises UserError if the list is empty.
    """
    count = int(ratio * layers + 0.5)
    if count == 0:
        raise UserError(f"activation_checkpointing.ratio must choose at least one of the {layers} blocks, got {ratio}")
    reached = [(2 * number * count + layers) // (2 * layers) for number in range(layers + 1)]
    return [number for number in range(layers) if reached[number + 1] > reached[number]]


def _recomputed(
    forward: Callable[..., Outputs], contexts: dict[str, Any], x: torch.Tensor, *shared: torch.Tensor | None
) -> Outputs:
    # what the blocks share (rotation, mask) bypasses the checkpoint, which would keep it once per block
    def run(x: torch.Tensor) -> Outputs:
        return forward(x, *shared)

    return checkpoint(run, x, use_reentrant=False, preserve_rng_state=False, **contexts)


def _offloading(forward: Callable[..., Any], tokens: torch.Tensor, *rest: Any) -> Any:
    # around the blocks, not in them: torch.compile does not compile a function that sets such hooks
    def pack(tensor: torch.Tensor) -> tuple[torch.device | None, torch.Tensor]:
        if not tensor.is_floating_point() or tensor.shape[:-1] != tokens.shape:
            return None, tensor  # not a block's input [B, L, D]
        waiting = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.device.type == "cuda")
        return tensor.device, waiting.copy_(tensor, non_blocking=True)

    def unpack(packed: tuple[torch.device | None, torch.Tensor]) -> torch.Tensor:
        device, tensor = packed
        return tensor if device is None else tensor.to(device, non_blocking=True)

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        return forward(tokens, *rest)


_PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten._scaled_mm.default, torch.ops.aten._grouped_mm.default)
"""One product each; where a device has no grouped one, each expert's counts."""


class _Policy:
    """torchtitan's policy: keep attention, which is expensive and has a small result, and every second product."""

    def __init__(self) -> None:
        self.products = {False: 0, True: 0}

    def __call__(self, context: Any, operator: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        if operator in _PRODUCTS:
            self.products[context.is_recompute] += 1
            kept = self.products[context.is_recompute] % 2 == 1
        else:
            kept = operator in _attentions()
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


def _selective_contexts() -> Any:
    return create_selective_checkpoint_contexts(_Policy())


# without it torch.compile compiles a checkpointed block again at each start
_selective_contexts.cache_hash = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()  # type: ignore[attr-defined]


@functools.cache
def _attentions() -> set[Any]:
    aten = torch.ops.aten
    return {
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        aten._scaled_dot_product_flash_attention.default,
        aten._scaled_dot_product_efficient_attention.default,
        aten._scaled_dot_product_cudnn_attention.default,
        torch.ops.torch_attn._varlen_attn.default,
    }
