"""Fill-in-the-middle: fragments of rows are permuted so that a model learns to write a middle between two given ends.

"Efficient Training of Language Models to Fill in the Middle" (arXiv 2207.14255), at the level of the context: the text
is permuted after it is packed into rows, as in the fork of Megatron-LM that trained StarCoder. A fragment is what
stands in a row between two of its separators, BOS and EOS, or the ends of the row. Two cuts at tokens, each drawn
uniformly, divide it into prefix P, middle M and suffix S, each of which may be empty:

    PSM     <prefix> P <suffix> S <middle> M
    SPM     <prefix> <suffix> S <middle> P M

A fragment keeps its length and its place: its last three tokens are dropped first, in favor of the three sentinels. So
rows, separators, attention within documents and the number of targets are those without fill-in-the-middle. The draws
are a function of the seed, the number of the sample and the column at which the fragment begins, so world size,
micro-batch, prefetch and a resume cannot change them, and each epoch has its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from stages.lib.recipe import identity
from stages.lib.sources import shingles
from stages.lib.tokenizer.tokenizer import SENTINELS

MIN_TOKENS = 16
"""Tokens of the shortest fragment that is permuted: of a shorter one, three tokens are too large a share to drop."""

GAMMA = np.uint64(0x9E3779B97F4A7C15)  # of SplitMix64 (Steele and others, "Fast Splittable PRNGs", 2014)


@dataclass(frozen=True, kw_only=True)
class FillInTheMiddleRecipe:
    """Fill-in-the-middle: a share of the documents' fragments is permuted to prefix, suffix and middle."""

    rate: float = identity(0.5, above=0, maximum=1)
    """Share of the fragments that are permuted: what a sample holds of a document. Shorter ones than 16 tokens never
    are. A permuted fragment loses its last three tokens to the three special tokens."""

    spm_rate: float = identity(0.5, minimum=0, maximum=1)
    """Share of the permuted fragments in which the suffix precedes the prefix (SPM); the others are PSM."""

    sources: list[str] | None = identity(None, entries=1, unique=True)
    """The sources whose text is permuted. Default: all."""


class Permutation:
    """Permutes fragments of rows. `sentinels`: {prefix, middle, suffix: id}; `separators`: ids between fragments."""

    def __init__(
        self, recipe: FillInTheMiddleRecipe, sentinels: Mapping[str, int], separators: frozenset[int], seed: int
    ) -> None:
        self.recipe, self.separators = recipe, separators
        self.sentinels = [sentinels[name] for name in SENTINELS]
        digest = hashlib.sha256(f"{seed}/fill_in_the_middle".encode()).digest()
        self._keys = np.frombuffer(digest, "<u8")  # four draws per fragment

    def permute(self, rows: np.ndarray, samples: np.ndarray) -> np.ndarray:
        """Return rows with permuted fragments. `rows`: tokens [rows, width], a sample each of the numbers `samples`."""
        width, flat = rows.shape[1], rows.reshape(-1)
        begins, lengths = self._fragments(flat, width)
        begins, lengths = begins[lengths >= MIN_TOKENS], lengths[lengths >= MIN_TOKENS]
        fragments = (samples[begins // width] * width + begins % width).astype(np.uint64)
        chosen = _shares(_hash(fragments, self._keys[0])) < self.recipe.rate
        begins, lengths, fragments = begins[chosen], lengths[chosen] - len(SENTINELS), fragments[chosen]
        if not len(begins):
            return rows
        cuts = [_below(_hash(fragments, key), lengths + 1) for key in self._keys[2:]]
        first, second = np.minimum(*cuts), np.maximum(*cuts)
        # SPM is PSM with an empty prefix, whose middle is prefix and middle
        first[_shares(_hash(fragments, self._keys[1])) < self.recipe.spm_rate] = 0
        # places of the three sentinels and the end; between them, each token comes from one a constant distance away
        to_suffix, to_middle = begins + 1 + first, begins + 2 + first + lengths - second
        bounds = np.stack([begins, to_suffix, to_middle, begins + len(SENTINELS) + lengths], axis=1)
        distances = np.stack(
            [np.full_like(first, -1), second - first - 2, second - lengths - 3, np.zeros_like(first)], axis=1
        )
        counts = np.diff(bounds.reshape(-1), prepend=0, append=len(flat))
        origins = np.repeat(np.concatenate([[0], distances.reshape(-1)]), counts)
        origins += np.arange(len(flat))
        permuted = flat[origins]
        for places, sentinel in zip((begins, to_middle, to_suffix), self.sentinels, strict=True):
            permuted[places] = sentinel
        return permuted.reshape(rows.shape)

    def _fragments(self, flat: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
        """(first place, number of tokens) of the fragments of flat rows, in order."""
        is_separator = np.zeros(len(flat), dtype=bool)
        for separator in self.separators:
            is_separator |= flat == separator
        separators = np.flatnonzero(is_separator)
        ends_of_rows = np.arange(width, len(flat) + 1, width)
        begins = np.sort(np.concatenate([ends_of_rows - width, separators + 1]), kind="stable")
        return begins, np.sort(np.concatenate([ends_of_rows, separators]), kind="stable") - begins


def _hash(numbers: np.ndarray, key: np.uint64) -> np.ndarray:
    """Return a random uint64 per number: the outputs of SplitMix64 that `key` seeds, by their position."""
    return shingles.mixed(numbers * GAMMA + key)


def _shares(hashed: np.ndarray) -> np.ndarray:
    """Return float64 numbers in [0, 1)."""
    return (hashed >> np.uint64(11)) * 2.0**-53


def _below(hashed: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return whole numbers from 0 to `ends` - 1, each below 2**31."""
    return ((hashed >> np.uint64(32)) * ends.astype(np.uint64) >> np.uint64(32)).astype(np.int64)
