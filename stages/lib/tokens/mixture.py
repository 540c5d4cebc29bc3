"""Which source a sample comes from: a fixed cycle of 4,096 slots, filled by weight and evenly spread.

Weights may change at given samples: see `Phases`.
"""

import numpy as np

from stages.lib.errors import UserError

SLOTS = 4096


class Mixture:
    """The cycle of sources for some weights.

    `sources`: names, sorted. `counts` int64 [sources]: slots a source. `slots` int64 [SLOTS]: the source of each slot.
    Weights are rounded to 1/4096 by largest remainder. Raises UserError when a weight would get no slot.
    """

    def __init__(self, weights, where="pretrain.weights"):
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
        self.slots = _spread(self.counts)
        self._rank = np.empty(SLOTS, dtype=np.int64)
        for number, count in enumerate(self.counts):
            self._rank[self.slots == number] = np.arange(count)

    def locate(self, samples):
        """(source number, how many samples of that source came before) of each global sample; int64 arrays."""
        cycles, slots = np.divmod(np.asarray(samples, dtype=np.int64), SLOTS)
        sources = self.slots[slots]
        return sources, cycles * self.counts[sources] + self._rank[slots]

    def taken(self, samples):
        """How many of the first `samples` samples each source gave: {source: count}."""
        cycles, rest = divmod(samples, SLOTS)
        counts = cycles * self.counts + np.bincount(self.slots[:rest], minlength=len(self.sources))
        return dict(zip(self.sources, counts.tolist(), strict=True))

    def described(self):
        """[{"from_sample", "slots": {source: of 4096}}] of all phases, as plain data."""
        return [{"from_sample": 0, "slots": dict(zip(self.sources, self.counts.tolist(), strict=True))}]


class Phases:
    """A mixture whose weights change at some samples. `history`: [(first sample, weights)], the first at sample 0.

    Each phase is a cycle of its own, and each source goes on in it where the phase before left it. `sources`: the names
    of all phases, sorted. `counts` int64 [phases, sources].
    """

    def __init__(self, history):
        self.firsts = np.array([first for first, _ in history], dtype=np.int64)
        self.mixtures = [Mixture(weights) for _, weights in history]
        self.sources = sorted({source for mixture in self.mixtures for source in mixture.sources})
        self._numbers = [np.searchsorted(self.sources, mixture.sources) for mixture in self.mixtures]
        self.counts = np.zeros((len(history), len(self.sources)), dtype=np.int64)
        self._before = np.zeros_like(self.counts)  # samples of each source before each phase
        for phase, (mixture, numbers) in enumerate(zip(self.mixtures, self._numbers, strict=True)):
            self.counts[phase, numbers] = mixture.counts
            if phase + 1 < len(history):
                self._before[phase + 1] = self._taken(phase, int(self.firsts[phase + 1]))

    def locate(self, samples):
        """As Mixture.locate; the source numbers are those of `sources`."""
        samples = np.asarray(samples, dtype=np.int64)
        data_stages = np.searchsorted(self.firsts, samples, side="right") - 1
        sources, ordinals = np.empty_like(samples), np.empty_like(samples)
        for phase in np.unique(data_stages).tolist():
            chosen = data_stages == phase
            found, before = self.mixtures[phase].locate(samples[chosen] - self.firsts[phase])
            sources[chosen] = self._numbers[phase][found]
            ordinals[chosen] = before + self._before[phase, sources[chosen]]
        return sources, ordinals

    def taken(self, samples):
        """How many of the first `samples` samples each source gave: {source: count}."""
        phase = int(np.searchsorted(self.firsts, samples, side="right")) - 1
        return dict(zip(self.sources, self._taken(phase, samples).tolist(), strict=True))

    def described(self):
        """As Mixture.described."""
        return [
            mixture.described()[0] | {"from_sample": first}
            for first, mixture in zip(self.firsts.tolist(), self.mixtures, strict=True)
        ]

    def _taken(self, phase, samples):
        counts = self._before[phase].copy()
        counts[self._numbers[phase]] += list(self.mixtures[phase].taken(samples - int(self.firsts[phase])).values())
        return counts


def of(history):
    """The Mixture of a history [(first sample, weights)]: Phases where the weights change."""
    return Mixture(history[0][1]) if len(history) == 1 else Phases(history)


def _spread(counts):
    """The source of each slot: up to any slot, each source had its share of the slots, give or take less than one.

    Number k of a source's n slots may be slot floor(k * SLOTS / n) to ceil((k + 1) * SLOTS / n) - 1; of those that
    may, the one that is due first is taken (Baruah and others, "Proportionate progress", 1996).
    """
    slots, taken = np.empty(SLOTS, dtype=np.int64), np.zeros_like(counts)
    for slot in range(SLOTS):
        due = -(-(taken + 1) * SLOTS // counts)
        due[taken * SLOTS // counts > slot] = 2 * SLOTS
        slots[slot] = np.argmin(due)
        taken[slots[slot]] += 1
    return slots
