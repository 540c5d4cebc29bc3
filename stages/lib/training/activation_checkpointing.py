"""Activation checkpointing: a block keeps some activations for its backward pass, and recomputes the others.

A checkpointed block keeps its input, and in mode `selective` some results. No mode changes a gradient: the same kernels
run again on the same numbers.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from stages.lib.errors import UserError
from stages.lib.model.transformer import Transformer
from stages.lib.training.settings.recipe import ActivationCheckpointingRecipe

Outputs = tuple[torch.Tensor, torch.Tensor | None]
"""Of a block: see `Block.forward`."""


def apply(model: Transformer, recipe: ActivationCheckpointingRecipe) -> None:
    """Checkpoint the blocks of a model. Call it before FSDP and torch.compile, so that they wrap the checkpoint.

    State-dict keys do not change. Raises UserError if the ratio is so small that no block is chosen.
    """
    if recipe.mode == "none":
        return
    contexts: dict[str, Any] = {}
    if recipe.mode == "selective":
        contexts = {"context_fn": lambda: create_selective_checkpoint_contexts(_Policy())}
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


@functools.cache
def _attentions() -> set[Any]:
    aten = torch.ops.aten
    return {
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        aten._scaled_dot_product_flash_attention.default,
        aten._scaled_dot_product_efficient_attention.default,
        aten._scaled_dot_product_cudnn_attention.default,
        torch.ops.higher_order.flex_attention,  # visible only in a compiled block: elsewhere it is recomputed
    }
