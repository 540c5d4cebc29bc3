"""Initial weights that depend on the seed and the parameter's name alone.

A parameter is drawn in blocks of rows, each from its own generator. So a rank draws only the blocks that its shard
overlaps, and every world size, sharding and device gives the same bits.
"""

import math
import zlib

import torch

from stages.lib.distributed.local_shards import local_rows
from stages.lib.model.llama import Llama

ROWS = 256
"""Rows per block. Another number gives other weights."""


@torch.no_grad()
def initialize(model: Llama, seed: int) -> None:
    """Fill the parameters of a model, sharded (DTensor) or whole, in place."""
    recipe, weights = model.recipe, model.recipe.key_table(model.vocab_size).by_key
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:  # RMSNorm
            parameter.fill_(1)
            continue
        scale = math.sqrt(2 * recipe.num_hidden_layers) if weights[name].into_residual else 1
        std = recipe.initializer_range / scale
        local, first_row = local_rows(parameter)
        for block in range(first_row // ROWS, -(-(first_row + len(local)) // ROWS)):
            drawn = draw_block(name, block, parameter.shape, std, seed)
            begin = max(first_row, block * ROWS)
            end = min(first_row + len(local), block * ROWS + len(drawn))
            local[begin - first_row : end - first_row] = drawn[begin - block * ROWS : end - block * ROWS]


def draw_block(name: str, block: int, shape: torch.Size, std: float, seed: int) -> torch.Tensor:
    """Rows [block * ROWS, ...) of a parameter of `shape` [rows, columns]: float32, on the CPU."""
    generator = torch.Generator().manual_seed(_block_seed(seed, name, block))
    rows = min(ROWS, shape[0] - block * ROWS)
    return torch.empty(rows, shape[1]).normal_(std=std, generator=generator)


def _block_seed(seed: int, name: str, block: int) -> int:
    # splitmix64's constants spread (seed, name, block) over 64 bits; CRC32 is the same on every machine
    mixed = (seed * 0x9E3779B97F4A7C15 + zlib.crc32(name.encode()) * 0xBF58476D1CE4E5B9 + block) % 2**64
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) % 2**64
    return mixed ^ (mixed >> 31)
