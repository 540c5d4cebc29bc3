"""Random tokens instead of a corpus, to measure training alone."""

import numpy as np

DOCUMENT_END = 0
"""The token that ends a document."""


class DummySamples:
    """Endless random tokens with the interface of the loader's Samples: a pure function of seed and sample number.

    `document_length`: mean number of tokens of a document, which DOCUMENT_END ends.
    """

    def __init__(self, vocab_size, seq_len, seed, document_length=None):
        self.vocab_size, self.seq_len, self.seed, self.document_length = vocab_size, seq_len, seed, document_length

    def batch(self, samples):
        """Return inputs and targets of global sample numbers, int32 [samples, L] each: a target is the next token."""
        rows = np.empty((len(samples), self.seq_len + 1), dtype=np.int32)
        for row, number in zip(rows, samples, strict=True):
            generator = np.random.Generator(np.random.PCG64([self.seed, int(number)]))
            row[:] = generator.integers(self.vocab_size, size=len(row), dtype=np.int32)
            if self.document_length is not None:
                row[generator.random(len(row)) < 1 / self.document_length] = DOCUMENT_END
        return rows[:, :-1], rows[:, 1:]
