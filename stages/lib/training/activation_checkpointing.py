"""Activation checkpointing: what a block keeps for its backward pass, and what it computes once more.

A block then keeps its input, and in `selective` some results. No choice changes a gradient: the same kernels run again
on the same numbers.
"""

import functools
from dataclasses import dataclass

import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from stages.lib.errors import UserError
from stages.lib.recipe import operation

MODES = ("none", "ratio", "selective", "full", "offload")


@dataclass(frozen=True, kw_only=True)
class ActivationCheckpointingRecipe:
    """What is kept of the forward pass, and what is computed again for the backward pass."""

    mode: str = operation("none", choices=MODES)
    """none: everything is kept. ratio: a share of the blocks keeps its input alone, and is computed again. selective:
    each block keeps its input, attention, and every second matrix product. full: each block keeps its input alone.
    offload: as full, and the inputs wait in the CPU's memory."""

    ratio: float | None = operation(None, above=0, maximum=1)
    """The share of blocks that is computed again, evenly spread; for mode ratio."""

    def check(self, where):
        """Raise UserError where a ratio is missing, or does nothing."""
        if self.mode == "ratio" and self.ratio is None:
            raise UserError(
                f"{where}.ratio is missing: mode ratio needs the share of blocks, greater than 0 and at most 1"
            )
        if self.mode != "ratio" and self.ratio is not None:
            raise UserError(
                f"{where}.ratio must be left out but for mode ratio, got {self.ratio} with mode {self.mode}"
            )


def apply(model, recipe):
    """Make the blocks of a Llama keep what a recipe says. Before FSDP and torch.compile, which then see it inside.

    State-dict keys stay as they are. Raises UserError where a ratio is so small that it chooses no block.
    """
    if recipe.mode == "none":
        return
    contexts = {"context_fn": _selective_contexts} if recipe.mode == "selective" else {}
    blocks = model.base_model.layers
    for number in chosen(len(blocks), recipe.ratio if recipe.mode == "ratio" else 1.0):
        block = blocks[number]
        block.forward = functools.partial(_recomputed, block.forward, contexts)
    if recipe.mode == "offload":
        model.base_model.forward = functools.partial(_offloading, model.base_model.forward)


def chosen(layers, ratio):
    """The numbers of round(ratio * layers) of so many blocks, evenly spread, as fms-fsdp spreads them.

    Raises UserError where that is none.
    """
    count = int(ratio * layers + 0.5)
    if count == 0:
        raise UserError(f"activation_checkpointing.ratio must choose at least one of the {layers} blocks, got {ratio}")
    reached = [(2 * number * count + layers) // (2 * layers) for number in range(layers + 1)]
    return [number for number in range(layers) if reached[number + 1] > reached[number]]


def _recomputed(forward, contexts, x, *shared):
    # what the blocks share (rotation, mask) goes around the checkpoint, which would hold on to it once a block
    def run(x):
        return forward(x, *shared)

    return checkpoint(run, x, use_reentrant=False, preserve_rng_state=False, **contexts)


def _offloading(forward, tokens, *rest):
    # around the blocks, not in them: torch.compile knows no hooks, and runs a function that sets some uncompiled
    def pack(tensor):
        if not tensor.is_floating_point() or tensor.shape[:-1] != tokens.shape:
            return None, tensor  # no block's input [B, L, D]
        waiting = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.device.type == "cuda")
        return tensor.device, waiting.copy_(tensor, non_blocking=True)

    def unpack(packed):
        device, tensor = packed
        return tensor if device is None else tensor.to(device, non_blocking=True)

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        return forward(tokens, *rest)


def _selective_contexts():
    return create_selective_checkpoint_contexts(_Policy())


class _Policy:
    """torchtitan's: attention is kept, for it is dear and its result is small, and of the products each second one."""

    def __init__(self):
        self.products = {False: 0, True: 0}

    def __call__(self, context, operator, *_, **__):
        if operator == torch.ops.aten.mm.default:
            self.products[context.is_recompute] += 1
            kept = self.products[context.is_recompute] % 2 == 1
        else:
            kept = operator in _attentions()
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


@functools.cache
def _attentions():
    aten = torch.ops.aten
    return {
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        aten._scaled_dot_product_flash_attention.default,
        aten._scaled_dot_product_efficient_attention.default,
        aten._scaled_dot_product_cudnn_attention.default,
        torch.ops.higher_order.flex_attention,  # to be seen in a compiled block alone: elsewhere it runs once more
    }
