"""Quality classifiers: linear models over hashed n-grams of words, which score many texts at once.

A text's features are its n-grams of 1 to `ngram_words` words (of stages/lib/sources/shingles.py: without case and
punctuation), each hashed to one of `num_features`, counted, and divided by the root of their number, so that a text of
different n-grams has the norm 1. The score is the logistic function of their weighted sum. The sum of a text is taken
in the order of its n-grams, so that no score depends on the texts beside it.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from stages.lib import files, manifest
from stages.lib.errors import UserError
from stages.lib.sources import shingles
from stages.lib.sources.entries import grouped

if TYPE_CHECKING:  # the workflow reads the recipes of filters, and may run without this package
    import scipy.sparse

WEIGHTS = "weights.safetensors"
"""The file beside a classifier's manifest: `weight` [num_features] and `bias` [1], float32."""


@dataclass(frozen=True)
class Classifier:
    """A model. `weight`: float32 [num_features]."""

    weight: np.ndarray
    bias: float
    ngram_words: int

    def scores(self, texts: Sequence[str]) -> np.ndarray:
        """Return the probability of the good class for each text, float64 [texts]."""
        means = [np.empty(0)]
        for batch in grouped(texts, len, shingles.AT_ONCE):
            total, number = np.zeros(len(batch)), np.zeros(len(batch), np.int64)
            for features, counts in ngrams_of(batch, self.ngram_words, len(self.weight)):
                owners = np.repeat(np.arange(len(batch)), counts)
                total += np.bincount(owners, weights=self.weight[features], minlength=len(batch))
                number += counts
            means.append(total / np.sqrt(np.maximum(1, number)))
        return 1 / (1 + np.exp(-(np.concatenate(means) + self.bias)))


def ngrams_of(texts: Sequence[str], ngram_words: int, num_features: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield for each length of n-grams (features of the n-grams of all texts in order [N], their number per text)."""
    words, counts = shingles.words_of(texts)
    for length in range(1, ngram_words + 1):
        found, numbered = shingles.shingles_of(words, counts, length)
        yield (found % np.uint64(num_features)).astype(np.int64), numbered


def matrix_of(texts: Sequence[str], ngram_words: int, num_features: int) -> scipy.sparse.csr_matrix:
    """Return the features of texts as `Classifier` weights them, float32 [texts, num_features]."""
    import scipy.sparse

    rows = []
    for batch in grouped(texts, len, shingles.AT_ONCE):
        matrix = scipy.sparse.csr_matrix((len(batch), num_features), dtype=np.float32)
        number = np.zeros(len(batch), np.int64)
        for features, counts in ngrams_of(batch, ngram_words, num_features):
            ends = np.concatenate([[0], np.cumsum(counts)])
            ones = np.ones(len(features), np.float32)
            of_length = scipy.sparse.csr_matrix((ones, features, ends), shape=matrix.shape)
            of_length.sum_duplicates()
            matrix, number = matrix + of_length, number + counts
        matrix.data /= np.repeat(np.sqrt(np.maximum(1, number)), np.diff(matrix.indptr)).astype(np.float32)
        rows.append(matrix)
    return scipy.sparse.vstack(rows, format="csr")


def drawn(texts: Sequence[str], key: str = "sample") -> np.ndarray:
    """Return a number in [0, 1) for each text, float64 [texts]: uniform over texts, the same for the same text."""
    hashes = (hashlib.sha256(f"{key}/{text}".encode(errors="surrogatepass")).digest() for text in texts)
    return np.fromiter((int.from_bytes(found[:8], "big") >> 11 for found in hashes), float, len(texts)) / 2**53


def read(path: Path, digest: str) -> manifest.ClassifierManifest:
    """Return the manifest of a classifier. Raises UserError if it is missing, or has another digest."""
    if not path.exists():
        raise UserError(f"{path} is missing: it is the classifier of filters.quality; make it, then rerun with -R list")
    made = manifest.read(path, "train_classifier")
    if made.digest != digest:
        raise UserError(
            f"{path} is another classifier than the one that the list of the source was made with; rerun with -R list"
        )
    return made


@functools.cache
def load(path: Path, digest: str) -> Classifier:
    """Return the classifier of a manifest. Raises UserError if the manifest or its file is missing, or another one."""
    import safetensors.numpy

    made = read(path, digest)
    manifest.check_content(path.parent / WEIGHTS, made.identity["outputs"][WEIGHTS], path)
    tensors = safetensors.numpy.load_file(path.parent / WEIGHTS)
    return Classifier(tensors["weight"], float(tensors["bias"][0]), made.identity["ngram_words"])


def save(model: Classifier, path: Path) -> None:
    """Write the weights of a model."""
    import safetensors.numpy

    with files.atomic(path) as file:
        file.write(safetensors.numpy.save({"weight": model.weight, "bias": np.array([model.bias], np.float32)}))
