"""Random tokens instead of a corpus, to measure training alone."""

import numpy as np


class DummySamples:
    """Endless random tokens with the interface of the loader's Samples: a pure function of seed and sample number."""

    def __init__(self, vocab_size, seq_len, seed):
        self.vocab_size, self.seq_len, self.seed = vocab_size, seq_len, seed

    def batch(self, samples):
        """Return inputs and targets of global sample numbers, int32 [samples, L] each: a target is the next token."""
        rows = np.empty((len(samples), self.seq_len + 1), dtype=np.int32)
        for row, number in zip(rows, samples, strict=True):
            generator = np.random.Generator(np.random.PCG64([self.seed, int(number)]))
            row[:] = generator.integers(self.vocab_size, size=len(row), dtype=np.int32)
        return rows[:, :-1], rows[:, 1:]
