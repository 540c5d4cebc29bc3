"""Causal attention, within documents where a row holds several.

B is the micro-batch, L the sequence length, H and K the heads of queries and of keys, hd the width of a head.
"""

import functools

import torch
from torch.nn import functional
from torch.nn.attention import flex_attention as flex


def mask_of(documents):
    """Which tokens a token attends to: those of its own document up to itself. None, for all before it, without any.

    `documents`: int64 [B, L], the number of each token's document. The mask is exact, bool [B, 1, L, L], on the CPU,
    and a BlockMask elsewhere, which lets attention pass over what is masked.
    """
    if documents is None:
        return None
    return exact_mask(documents) if documents.device.type == "cpu" else block_mask(documents)


def exact_mask(documents):
    """Bool [B, 1, L, L], true where a query (dimension 2) sees a key (dimension 3)."""
    same = documents.unsqueeze(2) == documents.unsqueeze(1)
    return same.tril().unsqueeze(1)


def block_mask(documents):
    """The same for flex_attention (arXiv 2412.05496): blocks of 128 x 128 that are empty, full or looked at."""

    def sees(row, _head, query, key):
        return (query >= key) & (documents[row, query] == documents[row, key])

    rows, length = documents.shape
    return flex.create_block_mask(sees, rows, None, length, length, device=documents.device)


def attend(queries, keys, values, mask=None):
    """Scaled dot-product attention: [B, H, L, hd], and twice [B, K, L, hd] -> [B, H, L, hd]. `mask`: see mask_of."""
    grouped = queries.shape[1] != keys.shape[1]
    if isinstance(mask, flex.BlockMask):
        inlined = torch.compiler.is_compiling() or queries.device.type == "cpu"
        attention = flex.flex_attention if inlined else compiled_flex_attention()
        return attention(queries, keys, values, block_mask=mask, enable_gqa=grouped)
    return functional.scaled_dot_product_attention(
        queries, keys, values, mask, is_causal=mask is None, enable_gqa=grouped
    )


@functools.cache
def compiled_flex_attention():
    """flex_attention as one kernel: not compiled, it would write all scores to memory."""
    return torch.compile(flex.flex_attention)
