"""The order of the data: the source of each sample, and the place of each of a source's samples in its text.

The sources come in a fixed cycle of 4,096 slots, filled by weight and evenly spread; weights may change at given
samples (`StagedMixture`). A place follows by a keyed permutation of 0..n-1 that needs no table (`permute`), a Feistel
network with cycle walking: any position can be looked up alone, so a loader resumes at any sample in constant time,
however large the corpus. (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002.)
"""

import functools
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stages.lib.errors import UserError

SLOTS = 4096


class Mixture:
    """The cycle of sources for some weights.

    `sources`: names, sorted. `counts` int64 [sources]: slots per source. `slots` int64 [SLOTS]: source of each slot.
    Weights are rounded to 1/4096 by largest remainder. Raises UserError if a weight gets no slot.
    """

    def __init__(self, weights: Mapping[str, float], where: str = "pretrain.weights") -> None:
        self.sources = sorted(weights)
        values = np.array([weights[source] for source in self.sources], dtype=np.float64)
        if not values.size or not values.sum() > 0:
            raise UserError(f"{where} must give at least one source a weight greater than 0, got {weights}")
        shares = values / values.sum() * SLOTS
        self.counts = np.floor(shares).astype(np.int64)
        largest = np.argsort(self.counts - shares, kind="stable")
        self.counts[largest[: SLOTS - self.counts.sum()]] += 1
        for source, value, count in zip(self.sources, values, self.counts, strict=True):
            if count == 0:
                raise UserError(
                    f"{where}.{source} must be at least 1/{SLOTS} of the sum of all weights "
                    f"({values.sum():g}), got {value:g}; leave the source out instead"
                )

    @functools.cached_property
    def slots(self) -> np.ndarray:
        """The source of each slot; the check of weights does not need it, and it takes longest."""
        return _spread(self.counts)

    @functools.cached_property
    def _rank(self) -> np.ndarray:
        rank = np.empty(SLOTS, dtype=np.int64)
        for number, count in enumerate(self.counts):
            rank[self.slots == number] = np.arange(count)
        return rank

    def locate(self, samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (source number, number of earlier samples of that source) of each global sample; int64 arrays."""
        samples = np.asarray(samples, dtype=np.int64)
        if len(self.sources) == 1:
            return np.zeros_like(samples), samples
        cycles = samples // SLOTS
        slots = samples - cycles * SLOTS
        sources = self.slots[slots]
        return sources, cycles * self.counts[sources] + self._rank[slots]

    def taken(self, samples: int) -> dict[str, int]:
        """Return {source: number of its samples} among the first `samples` samples."""
        cycles, rest = divmod(samples, SLOTS)
        counts = cycles * self.counts + np.bincount(self.slots[:rest], minlength=len(self.sources))
        return dict(zip(self.sources, counts.tolist(), strict=True))

    def described(self) -> list[dict[str, Any]]:
        """Return [{"from_sample", "slots": {source: of 4096}}] of all data stages, as JSON data."""
        return [{"from_sample": 0, "slots": dict(zip(self.sources, self.counts.tolist(), strict=True))}]


class StagedMixture:
    """A mixture whose weights change at some samples. `history`: [(first sample, weights)], the first at sample 0.

    Each data stage has a cycle of its own, in which each source resumes where the stage before left it. `sources`: the
    names in all stages, sorted. `counts` int64 [stages, sources].
    """

    def __init__(self, history: Sequence[tuple[int, Mapping[str, float]]]) -> None:
        self.firsts = np.array([first for first, _ in history], dtype=np.int64)
        self.mixtures = [Mixture(weights) for _, weights in history]
        self.sources = sorted({source for mixture in self.mixtures for source in mixture.sources})
        self._numbers = [np.searchsorted(self.sources, mixture.sources) for mixture in self.mixtures]
        self.counts = np.zeros((len(history), len(self.sources)), dtype=np.int64)
        self._before = np.zeros_like(self.counts)  # samples of each source before each stage
        for stage, (mixture, numbers) in enumerate(zip(self.mixtures, self._numbers, strict=True)):
            self.counts[stage, numbers] = mixture.counts
            if stage + 1 < len(history):
                self._before[stage + 1] = self._taken(stage, int(self.firsts[stage + 1]))

    def locate(self, samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Like Mixture.locate; the source numbers are those of `sources`."""
        samples = np.asarray(samples, dtype=np.int64)
        stages = np.searchsorted(self.firsts, samples, side="right") - 1
        sources, ordinals = np.empty_like(samples), np.empty_like(samples)
        for stage in np.unique(stages).tolist():
            chosen = stages == stage
            found, before = self.mixtures[stage].locate(samples[chosen] - self.firsts[stage])
            sources[chosen] = self._numbers[stage][found]
            ordinals[chosen] = before + self._before[stage, sources[chosen]]
        return sources, ordinals

    def taken(self, samples: int) -> dict[str, int]:
        """Return {source: number of its samples} among the first `samples` samples."""
        stage = int(np.searchsorted(self.firsts, samples, side="right")) - 1
        return dict(zip(self.sources, self._taken(stage, samples).tolist(), strict=True))

    def described(self) -> list[dict[str, Any]]:
        """Like Mixture.described."""
        return [
            mixture.described()[0] | {"from_sample": first}
            for first, mixture in zip(self.firsts.tolist(), self.mixtures, strict=True)
        ]

    def _taken(self, stage: int, samples: int) -> np.ndarray:
        counts = self._before[stage].copy()
        counts[self._numbers[stage]] += list(self.mixtures[stage].taken(samples - int(self.firsts[stage])).values())
        return counts


def from_history(history: Sequence[tuple[int, Mapping[str, float]]]) -> Mixture | StagedMixture:
    """Return the mixture of a history [(first sample, weights)], staged if the weights change."""
    return Mixture(history[0][1]) if len(history) == 1 else StagedMixture(history)


def _spread(counts: np.ndarray) -> np.ndarray:
    """Return the source of each slot: up to any slot, each source has its share of the slots, within less than one.

    Number k of a source's n slots may be slot floor(k * SLOTS / n) to ceil((k + 1) * SLOTS / n) - 1; of the sources
    that may take a slot, the one that is due first takes it (Baruah and others, "Proportionate progress", 1996).
    """
    slots, taken = np.empty(SLOTS, dtype=np.int64), np.zeros_like(counts)
    for slot in range(SLOTS):
        due = -(-(taken + 1) * SLOTS // counts)
        due[taken * SLOTS // counts > slot] = 2 * SLOTS
        slots[slot] = np.argmin(due)
        taken[slots[slot]] += 1
    return slots


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
        block = _encrypt(flat[start : start + BLOCK], bits, rounds)
        # the network permutes [0, 2**bits), less than twice the range: a value outside is encrypted again until inside
        outside = np.flatnonzero(block >= size)
        while outside.size:
            walked = _encrypt(block[outside], bits, rounds)
            block[outside] = walked
            outside = outside[walked >= size]
        moved[start : start + BLOCK] = block
    return moved.reshape(np.shape(values))


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
