"""A keyed permutation of 0..n-1 that needs no table: a Feistel network with cycle walking.

Any position can be looked up alone, so a loader resumes at any sample in constant time, whatever the size of the corpus.
(Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002.)
"""

import hashlib

import numpy as np

ROUNDS = 6


def permute(positions, size, key):
    """Where each position goes under the permutation of `range(size)` that `key` (text) names.

    `positions`: int64 array of any shape, each in [0, size). Returns int64 of the same shape.
    """
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    keys = np.frombuffer(hashlib.shake_256(key.encode()).digest(8 * ROUNDS), "<u8")
    values = _encrypt(np.ascontiguousarray(positions, dtype=np.uint64), half, keys)
    # the domain is a power of 4, less than 4 * size: whoever leaves the range walks on until it is back in it
    outside = np.flatnonzero(values.ravel() >= size)
    while outside.size:
        flat = values.reshape(-1)
        flat[outside] = _encrypt(flat[outside], half, keys)
        outside = outside[flat[outside] >= size]
    return values.astype(np.int64)


def _encrypt(values, half, keys):
    bits, mask = np.uint64(half), np.uint64((1 << half) - 1)
    left, right = values >> bits, values & mask
    for key in keys:
        left, right = right, left ^ (_mix(right ^ key) & mask)
    return (left << bits) | right


def _mix(x):
    """The finalizer of splitmix64 (Steele, Lea and Flood, 2014)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
