"""Causal attention, within documents if a row holds several.

B is the micro-batch size, L the sequence length, T the number of keys, H and K the numbers of attention heads and of
key-value heads, hd the head dimension.
"""

import functools
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch.nn import functional
from torch.nn.attention import flex_attention as flex

Mask: TypeAlias = torch.Tensor | flex.BlockMask | None
"""None: a token attends to itself and all tokens before it."""


def mask_of(documents: torch.Tensor | None) -> Mask:
    """The mask by which a token attends to the tokens of its own document up to itself; None without documents.

    `documents`: int64 [B, L], the number of each token's document. The mask is exact, bool [B, 1, L, L], on the CPU,
    and a BlockMask elsewhere, by which attention skips the blocks that are masked.
    """
    if documents is None:
        return None
    return exact_mask(documents) if documents.device.type == "cpu" else block_mask(documents)


def exact_mask(documents: torch.Tensor) -> torch.Tensor:
    """Bool [B, 1, L, L], true if a query (dimension 2) attends to a key (dimension 3)."""
    same = documents.unsqueeze(2) == documents.unsqueeze(1)
    return same.tril().unsqueeze(1)


def block_mask(documents: torch.Tensor) -> flex.BlockMask:
    """The same for flex_attention (arXiv 2412.05496): blocks of 128 x 128 that are empty, full or partial."""

    def attends(row: torch.Tensor, _head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return (query >= key) & (documents[row, query] == documents[row, key])

    rows, length = documents.shape
    return flex.create_block_mask(attends, rows, None, length, length, device=documents.device)


def attend(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: Mask = None) -> torch.Tensor:
    """Scaled dot-product attention: [B, H, L, hd], and twice [B, K, T, hd] -> [B, H, L, hd].

    T is L, or L is 1: the last of T tokens then attends to all of them. `mask`: see mask_of.
    """
    grouped = queries.shape[1] != keys.shape[1]
    if isinstance(mask, flex.BlockMask):
        inlined = torch.compiler.is_compiling() or queries.device.type == "cpu"
        attention = flex.flex_attention if inlined else compiled_flex_attention()
        return attention(queries, keys, values, block_mask=mask, enable_gqa=grouped)  # type: ignore[operator]
    causal = mask is None and queries.shape[2] == keys.shape[2]
    return functional.scaled_dot_product_attention(queries, keys, values, mask, is_causal=causal, enable_gqa=grouped)


@functools.cache
def compiled_flex_attention() -> Callable[..., torch.Tensor]:
    """flex_attention as one kernel: without compilation it would write all scores to memory."""
    return torch.compile(flex.flex_attention)
