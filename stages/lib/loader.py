"""The order of the training data: a pure function from a global sample number to a window of tokens.

    sample g -> (source, j): the mixture's cycle of 4,096 slots
    j -> (epoch, position): an epoch is a source's own
    position -> window: a permutation keyed by seed, source and epoch

Window k of a stream is its tokens [k * L, k * L + L], so neighbours share one token and each token but the first is a
target once an epoch; a tail shorter than L is left out. The state is the number of samples seen: world size,
micro-batch and prefetch cannot change the order.
"""

import queue
import threading

import numpy as np

from stages.lib.errors import UserError
from stages.lib.mixture import Mixture
from stages.lib.permutation import permute


class Samples:
    """All training samples of a corpus under a recipe, by global number.

    `document_end`: the token that ends a document, where attention shall stay within one.

    Raises UserError when the weights do not name sources of the corpus, or a source is shorter than one window.
    """

    def __init__(self, corpus, weights, seq_len, seed, document_end=None):
        for source in weights:
            if source not in corpus.sources:
                raise UserError(
                    f"pretrain.weights.{source} must name a source of the corpus ({', '.join(sorted(corpus.sources))})"
                )
        self.mixture = Mixture(weights)
        self.seq_len, self.seed, self.document_end = seq_len, seed, document_end
        self.streams = [corpus.stream(source) for source in self.mixture.sources]
        self.windows = np.array([(len(stream) - 1) // seq_len for stream in self.streams], dtype=np.int64)
        for source, stream, windows in zip(self.mixture.sources, self.streams, self.windows, strict=True):
            if windows < 1:
                raise UserError(
                    f"pretrain.seq_len must be less than the tokens of each source: {source} has {len(stream)}, "
                    f"got {seq_len}"
                )

    def locate(self, samples):
        """(source number, epoch, window) of each global sample number; int64 arrays."""
        sources, ordinals = self.mixture.locate(samples)
        epochs, positions = np.divmod(ordinals, self.windows[sources])
        windows = np.empty_like(positions)
        for source, epoch in set(zip(sources.tolist(), epochs.tolist(), strict=True)):
            chosen = (sources == source) & (epochs == epoch)
            # the name, not the number, so that adding a source reshuffles no other
            key = f"{self.seed}/{self.mixture.sources[source]}/{epoch}"
            windows[chosen] = permute(positions[chosen], int(self.windows[source]), key)
        return sources, epochs, windows

    def read(self, samples):
        """The tokens of some samples, int32 [samples, L + 1]."""
        sources, _, windows = self.locate(samples)
        rows = np.empty((len(sources), self.seq_len + 1), dtype=np.int32)
        for row, source, window in zip(rows, sources, windows, strict=True):
            row[:] = self.streams[source].read(int(window) * self.seq_len, self.seq_len + 1)
        return rows

    def batch(self, samples):
        """Inputs and targets of some samples, int32 [samples, L] each: the target of a token is the next."""
        rows = self.read(samples)
        return rows[:, :-1], rows[:, 1:]

    def taken(self, samples):
        """How many of the first `samples` samples each source gave: {source: count}."""
        return self.mixture.taken(samples)


def share_of(first, rank, world_size, global_batch):
    """The global sample numbers that a rank trains on in the step that begins at sample `first`.

    They are an equal, contiguous share of the global batch.
    """
    share = global_batch // world_size
    return np.arange(first + rank * share, first + (rank + 1) * share, dtype=np.int64)


class Prefetch:
    """Reads batches ahead, in a thread: `samples.batch` of each array of `numbers` (an iterable).

    What fails in the thread is raised where a batch is asked for.
    """

    DEPTH = 2

    def __init__(self, samples, numbers):
        self._ready = queue.Queue(self.DEPTH)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._fill, args=(samples, numbers), name="prefetch", daemon=True)
        self._thread.start()

    def _fill(self, samples, numbers):
        try:
            for wanted in numbers:
                self._put(samples.batch(wanted))
                if self._closed.is_set():
                    return
            self._put(IndexError("no step is left to read"))
        except Exception as error:  # handed over to the training thread, which raises it
            self._put(error)

    def _put(self, item):
        while not self._closed.is_set():
            try:
                return self._ready.put(item, timeout=0.1)
            except queue.Full:
                continue

    def next(self):
        """Inputs and targets of the next batch."""
        item = self._ready.get()
        if isinstance(item, Exception):
            raise item
        return item

    def close(self):
        """Stop the thread."""
        self._closed.set()
        self._thread.join()
