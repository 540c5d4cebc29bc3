"""Causal attention, within documents if a row holds several, and within a sliding window if the model has one.

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


def mask_of(tokens: torch.Tensor, documents: torch.Tensor | None = None, window: int | None = None) -> Mask:
    """The mask of attention in rows of `tokens` [B, L]; None if each attends to itself and all before it.

    `documents`: int64 [B, L], the number of each token's document, to which its attention is kept. `window`: the number
    of tokens, itself included, to which attention is kept. The mask is exact, bool [B or 1, 1, L, L], on the CPU, and a
    BlockMask elsewhere, by which attention skips the blocks that are masked.
    """
    if window is not None and window >= tokens.shape[1]:
        window = None
    if documents is None and window is None:
        return None
    return (exact_mask if tokens.device.type == "cpu" else block_mask)(tokens, documents, window)


def exact_mask(tokens: torch.Tensor, documents: torch.Tensor | None = None, window: int | None = None) -> torch.Tensor:
    """Bool [B or 1, 1, L, L], true if a query (dimension 2) attends to a key (dimension 3)."""
    length = tokens.shape[1]
    seen = torch.ones(1, length, length, dtype=torch.bool, device=tokens.device)
    if documents is not None:
        seen = documents.unsqueeze(2) == documents.unsqueeze(1)
    seen = seen.tril()
    return (seen if window is None else seen.triu(1 - window)).unsqueeze(1)


def block_mask(
    tokens: torch.Tensor, documents: torch.Tensor | None = None, window: int | None = None
) -> flex.BlockMask:
    """The same for flex_attention (arXiv 2412.05496): blocks of 128 x 128 that are empty, full or partial."""

    def attends(row: torch.Tensor, _head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        seen = query >= key
        if window is not None:
            seen = seen & (query - key < window)
        if documents is not None:
            seen = seen & (documents[row, query] == documents[row, key])
        return seen

    rows, length = tokens.shape
    return flex.create_block_mask(attends, None if documents is None else rows, None, length, length, tokens.device)


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
