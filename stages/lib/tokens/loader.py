"""The order of the training data: a pure function from a global sample number to a row of tokens.

    sample g -> (source, j): the mixture's cycle of 4,096 slots
    j -> (epoch, position): an epoch is a source's own
    position -> row: what `packing` says

`window` cuts a source's stream in windows: window k is its tokens [k * L, k * L + L], so neighbours share one token and
each token but the first is a target once an epoch; a tail shorter than L is left out. The windows of an epoch come in
the order of a permutation keyed by seed, source and epoch. `concat` and `best_fit` pack documents, see
document_rows.py.

The state is the number of samples seen: world size, micro-batch and prefetch cannot change the order.

Attention within documents (`document_end`) needs nothing more than the tokens: a document ends with EOS and a row that
begins inside of one begins a document of its own, see `model.documents_of`; rows of `best_fit` hold pieces that end
with EOS, or one that fills the row. Rotary positions count on over a row: what attention sees of them is the difference
of two, which is the same whether a document begins at 0 or elsewhere.
"""

import functools
import queue
import threading

import numpy as np

from stages.lib.errors import UserError
from stages.lib.tokens import mixture
from stages.lib.tokens.document_rows import DocumentRows
from stages.lib.tokens.packing import PACKINGS
from stages.lib.tokens.permutation import permute
from stages.lib.tokens.segments import Segments, ranges

CHUNK = "chunk"
KINDS = (CHUNK, *PACKINGS)
AHEAD = 1024  # positions whose windows are looked up together


class Windows:
    """A source's stream cut in windows of `seq_len` + 1 tokens. `key` (text) names their order.

    `rows`: windows an epoch. `targets`: tokens that are targets, an epoch.
    """

    def __init__(self, stream, seq_len, key):
        self.stream, self.seq_len, self.key = stream, seq_len, key
        self.rows = (len(stream) - 1) // seq_len
        self.targets = self.rows * seq_len

    def rows_at(self, epoch, positions):
        """The window at each position of an epoch."""
        first, key = int(positions.min()) // AHEAD, f"{self.key}/{epoch}"
        if int(positions.max()) // AHEAD > first + 1:
            return permute(positions, self.rows, key)
        windows = np.concatenate([_windows_ahead(self.rows, key, first), _windows_ahead(self.rows, key, first + 1)])
        return windows[positions - first * AHEAD]

    def segments(self, _epoch, windows):
        """The `Pieces` of some windows: one each."""
        numbers, width = np.arange(len(windows)), self.seq_len + 1
        return Segments(numbers, windows * self.seq_len, np.full_like(windows, width), np.zeros_like(windows))

    def targets_before(self, _epoch, position):
        """How many targets the first `position` rows of an epoch have."""
        return position * self.seq_len


@functools.lru_cache(maxsize=64)
def _windows_ahead(rows, key, number):
    """The windows at AHEAD positions: the permutation of a few costs almost as much as that of many."""
    return permute(np.arange(number * AHEAD, min(rows, number * AHEAD + AHEAD)), rows, key)


def check_named(weights, corpus, where):
    """Raise UserError naming the key `where` unless weights name sources of a Corpus."""
    for source in weights:
        if source not in corpus.sources:
            raise UserError(f"{where}.{source} must name a source of the corpus ({', '.join(sorted(corpus.sources))})")


class Samples:
    """All training samples of a corpus under a recipe, by global number.

    `weights`: {source: weight}, or a history of the mixture [(first sample, weights)], see mixture.py. `document_end`:
    the token that ends a document, where attention shall stay within one. `packing`: chunk, concat or best_fit.

    `rows`: of each source an epoch, int64 [sources].

    Raises UserError when the weights do not name sources of the corpus, or a source is too short.
    """

    def __init__(self, corpus, weights, seq_len, seed, document_end=None, packing=CHUNK):
        history = [(0, weights)] if isinstance(weights, dict) else weights
        for _, named in history:
            check_named(named, corpus, "pretrain.weights")
        self.corpus, self.mixture = corpus, mixture.of(history)
        self.seq_len, self.seed, self.document_end, self.packing = seq_len, seed, document_end, packing
        self.streams = [corpus.stream(source) for source in self.mixture.sources]
        self._filling = 0 if packing == CHUNK else corpus.tokenizer["eos"]
        self.layouts = [
            # the name, not the number, so that adding a source reshuffles no other
            self._layout(source, stream, f"{seed}/{source}")
            for source, stream in zip(self.mixture.sources, self.streams, strict=True)
        ]
        self.rows = np.array([layout.rows for layout in self.layouts], dtype=np.int64)

    def _layout(self, source, stream, key):
        if self.packing == CHUNK:
            if len(stream) <= self.seq_len:
                raise UserError(
                    f"pretrain.seq_len must be less than the tokens of each source: {source} has {len(stream)}, "
                    f"got {self.seq_len}"
                )
            return Windows(stream, self.seq_len, key)
        layout = DocumentRows(stream, self.seq_len, key, PACKINGS[self.packing])
        if layout.targets < 1:
            raise UserError(f"source {source} must have a document of two tokens, and has none")
        return layout

    def locate(self, samples):
        """(source number, epoch, row) of each global sample number; int64 arrays.

        A row is the number of a window, or in the order of the epoch that of a row of documents.
        """
        sources, ordinals = self.mixture.locate(samples)
        epochs, positions = np.divmod(ordinals, self.rows[sources])
        rows = np.empty_like(positions)
        for source, epoch, chosen in _groups(sources, epochs):
            rows[chosen] = self.layouts[source].rows_at(epoch, positions[chosen])
        return sources, epochs, rows

    def read(self, samples):
        """The tokens of some samples, int32 [samples, L + 1]; what is left of a row is filled up with EOS."""
        return self._read(samples)[0]

    def batch(self, samples):
        """Inputs and targets of some samples, int32 [samples, L] each: the target of a token is the next."""
        rows, ignored = self._read(samples)
        following = rows
        if len(ignored):
            from stages.lib.model.loss import IGNORED  # here, since it imports torch

            following = rows.copy()
            following.reshape(-1)[ignored] = IGNORED
        return rows[:, :-1], following[:, 1:]

    def _read(self, samples):
        """The rows, and which of their tokens are no targets: their places in the flat rows, int64."""
        sources, epochs, rows = self.locate(samples)
        width = self.seq_len + 1
        tokens = np.empty((len(sources), width), dtype=self.streams[0].dtype)
        ignored = [np.empty(0, dtype=np.int64)]
        for source, epoch, chosen in _groups(sources, epochs):
            segments = self.layouts[source].segments(epoch, rows[chosen])
            places = chosen[segments.rows] * width + segments.places
            self.streams[source].gather(segments.starts, segments.counts, places, tokens)
            if self.packing != CHUNK:
                ignored += self._fill(tokens, chosen, segments, places)
        return tokens.view(np.int32) if tokens.itemsize == 4 else tokens.astype(np.int32), np.concatenate(ignored)

    def _fill(self, tokens, chosen, segments, places):
        """Fill rows up behind their last piece; returns where that was, and what follows the end of a closed piece."""
        width, used = tokens.shape[1], np.empty(len(chosen), dtype=np.int64)
        used[segments.rows] = segments.places + segments.counts  # the last piece of a row has the last word
        _, behind = ranges(chosen * width + used, width - used)
        tokens.reshape(-1)[behind] = self._filling
        following = places + segments.counts if segments.closed else places[:0]
        return behind, following[following % width > 0]

    def described(self):
        """What was made of the weights, and rows of each source an epoch, as plain data."""
        rows = dict(zip(self.mixture.sources, self.rows.tolist(), strict=True))
        return {"mixture": self.mixture.described(), "rows": rows}

    def figures(self, samples):
        """What the first `samples` samples were: targets a source, and how often each source was gone through."""
        tokens, epochs = {}, {}
        for (source, count), layout in zip(self.mixture.taken(samples).items(), self.layouts, strict=True):
            epoch, position = divmod(count, layout.rows)
            tokens[source] = epoch * layout.targets + layout.targets_before(epoch, position)
            epochs[source] = count / layout.rows
        return {"source_tokens": tokens, "source_epochs": epochs}


def _groups(sources, epochs):
    """(source, epoch, which samples) of all pairs that occur."""
    for source in np.unique(sources).tolist():
        of_source = np.flatnonzero(sources == source)
        found = epochs[of_source]
        for epoch in range(int(found.min()), int(found.max()) + 1):
            chosen = of_source[found == epoch]
            if len(chosen):
                yield source, epoch, chosen


def share_of(first, rank, world_size, global_batch_size):
    """The global sample numbers that a rank trains on in the step that begins at sample `first`.

    They are an equal, contiguous share of the global batch.
    """
    share = global_batch_size // world_size
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
