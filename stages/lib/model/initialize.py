"""Initial weights that depend on the seed and the parameter's name alone.

A parameter is drawn in blocks of rows, each from its own generator. So a rank draws only the blocks that its shard
overlaps, and every world size, sharding and device gives the same bits.
"""

import math
import zlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import torch

from stages.lib.distributed.collectives import local_rows
from stages.lib.distributed.process_group import cores_of_rank
from stages.lib.model import key_table
from stages.lib.model.transformer import Transformer

ROWS = 256
"""Rows per block. Another number gives other weights."""


@torch.no_grad()
def initialize(model: Transformer, seed: int) -> None:
    """Fill the parameters of a model, sharded (DTensor) or whole, in place."""
    recipe, weights = model.recipe, key_table.build(model.recipe, model.vocab_size).by_key
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            parameter.fill_(0 if name.endswith(".bias") else 1)  # else the scale of an RMSNorm
            continue
        scale = math.sqrt(2 * recipe.num_hidden_layers) if weights[name].into_residual else 1
        fill(name, parameter, recipe.initializer_range / scale, seed)


@torch.no_grad()
def initialize_adapters(adapters: Iterable[tuple[str, torch.Tensor]], seed: int) -> None:
    """Fill adapters of LoRA, (name, parameter), in place: lora_B with zeros, so that a training starts at the base.

    lora_A is normal, as in the paper, with the variance 1 / (3 * columns) of peft's uniform values.
    """
    for name, parameter in adapters:
        if name.endswith("lora_B"):
            parameter.zero_()
        else:
            fill(name, parameter, 1 / math.sqrt(3 * parameter.shape[1]), seed)


def fill(name: str, parameter: torch.Tensor, std: float, seed: int) -> None:
    """Fill a parameter [rows, columns], sharded or whole, with normal values."""
    local, first_row = local_rows(parameter)
    shape = parameter.shape

    def fill_block(block: int) -> None:
        generator = torch.Generator().manual_seed(mixed_seed(seed, name, block))
        rows = min(ROWS, shape[0] - block * ROWS)
        drawn = torch.empty(rows, shape[1]).normal_(std=std, generator=generator)  # float32, on the CPU
        begin = max(first_row, block * ROWS)
        end = min(first_row + len(local), block * ROWS + len(drawn))
        with torch.no_grad():  # a thread begins with gradients
            local[begin - first_row : end - first_row] = drawn[begin - block * ROWS : end - block * ROWS]

    blocks = range(first_row // ROWS, -(-(first_row + len(local)) // ROWS))
    with ThreadPoolExecutor(cores_of_rank()) as pool:  # one thread draws 8 billion weights in a minute
        list(pool.map(fill_block, blocks))


def mixed_seed(seed: int, name: str, number: int) -> int:
    """The seed of a generator for a numbered part of what has a name."""
    # splitmix64's constants spread (seed, name, number) over 64 bits; CRC32 is the same on every machine
    mixed = (seed * 0x9E3779B97F4A7C15 + zlib.crc32(name.encode()) * 0xBF58476D1CE4E5B9 + number) % 2**64
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) % 2**64
    return mixed ^ (mixed >> 31)
