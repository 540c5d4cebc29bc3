"""A keyed permutation of 0..n-1 that needs no table: a Feistel network with cycle walking.

Any position can be looked up alone, so a loader resumes at any sample in constant time, however large the corpus.
(Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002.)
"""

import hashlib

import numpy as np

ROUNDS = 8  # with 6, neighbours in permutations of about 1,000 are a little correlated
BLOCK = 1 << 14  # positions at a time: the working set of a round stays in the CPU cache
MULTIPLIER = np.uint32(0x7FEB352D)  # of the hash lowbias32 (Wellons, "Prospecting for Hash Functions", 2018)


def permute(positions: np.ndarray, size: int, key: str) -> np.ndarray:
    """Return the image of each position under the permutation of `range(size)` that `key` names.

    `positions`: int64 array of any shape, each in [0, size); `size` at most 2**63. Returns int64 of the same shape.
    """
    return _walk(positions, size, _rounds(key))


def positions_of(values: np.ndarray, size: int, key: str) -> np.ndarray:
    """Return the positions that `permute` moves to `values`: its inverse."""
    return _walk(values, size, _rounds(key)[::-1])


def _rounds(key: str) -> list[tuple[int, np.ndarray]]:
    """Return [(number, two uint32)] of the rounds; in reverse order they invert the permutation."""
    keys = np.frombuffer(hashlib.shake_256(key.encode()).digest(8 * ROUNDS), "<u4").reshape(ROUNDS, 2)
    return list(enumerate(keys))


def _walk(values: np.ndarray, size: int, rounds: list[tuple[int, np.ndarray]]) -> np.ndarray:
    bits = max(2, (size - 1).bit_length())
    flat = np.ascontiguousarray(values, dtype=np.int64).reshape(-1)
    moved = np.empty_like(flat)
    for start in range(0, flat.size, BLOCK):
        block = slice(start, start + BLOCK)
        moved[block] = _walk_block(flat[block], size, bits, rounds)
    return moved.reshape(np.shape(values))


def _walk_block(values: np.ndarray, size: int, bits: int, rounds: list[tuple[int, np.ndarray]]) -> np.ndarray:
    values = _encrypt(values, bits, rounds)
    # the network permutes [0, 2**bits), less than twice the range: a value outside is encrypted again until inside
    outside = np.flatnonzero(values >= size)
    while outside.size:
        walked = _encrypt(values[outside], bits, rounds)
        values[outside] = walked
        outside = outside[walked >= size]
    return values


def _encrypt(values: np.ndarray, bits: int, rounds: list[tuple[int, np.ndarray]]) -> np.ndarray:
    """Apply a bijection of [0, 2**bits), bits from 2 to 63: each half in turn is changed by a hash of the other."""
    low_bits = bits // 2
    low = (values & ((1 << low_bits) - 1)).astype(np.uint32)
    high = (values >> low_bits).astype(np.uint32)
    mixed, shifted = np.empty_like(low), np.empty_like(low)
    for number, (first, second) in rounds:
        source, target, width = (low, high, bits - low_bits) if number % 2 == 0 else (high, low, low_bits)
        np.bitwise_xor(source, first, out=mixed)
        np.multiply(mixed, MULTIPLIER, out=mixed)
        np.right_shift(mixed, np.uint32(15), out=shifted)
        np.bitwise_xor(mixed, shifted, out=mixed)
        np.multiply(mixed, second | np.uint32(1), out=mixed)
        np.right_shift(mixed, np.uint32(32 - width), out=mixed)  # the upper bits of a product depend on all of it
        np.bitwise_xor(target, mixed, out=target)
    return (high.astype(np.int64) << low_bits) | low
