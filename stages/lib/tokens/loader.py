"""The order of the training data: a pure function from a global sample number to a row of tokens.

    sample g -> (source, j): the mixture's cycle of 4,096 slots
    j -> (epoch, position): each source has epochs of its own
    position -> row: given by the packing

The packings are in packing.py: `chunk` cuts a source's stream, `concat` and `best_fit` pack its documents
(document_rows.py).

The state is the number of samples seen: world size, micro-batch and prefetch cannot change the order.

Attention within documents (`document_end`) needs only the tokens: a document ends with EOS, and a row that begins
inside a document begins a document of its own, see `transformer.documents_of`; rows of `best_fit` hold segments that
end with EOS, or one that fills the row. Rotary positions are those in the row: attention depends on the difference of
two positions, which is the same wherever a document begins.

Fill-in-the-middle (fill_in_the_middle.py) permutes tokens within a row after it is read; the order of the rows is the
same with and without it.

A training that starts from another's checkpoint with `initial.data: continue` continues the order of the samples too:
its first sample is the one after the other's last. Each source resumes at its position, whatever the weights are now; a
source that is new in the corpus begins at its start. The checkpoint stores the past: `history`, the weights and the
sample from which they hold, and `sources`, the digest of each source's text.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from stages.lib import recipe as recipes
from stages.lib.errors import UserError
from stages.lib.tokens import data_order
from stages.lib.tokens.corpus import Corpus, Segments, ranges
from stages.lib.tokens.fill_in_the_middle import FillInTheMiddleRecipe, Permutation
from stages.lib.tokens.packing import CHUNK, PACKINGS


def check_named(weights: Iterable[str], corpus: Corpus, where: str) -> None:
    """Raise UserError naming the key `where` unless all weights name sources of the corpus."""
    for source in weights:
        if source not in corpus.sources:
            raise UserError(f"{where}.{source} must name a source of the corpus ({', '.join(sorted(corpus.sources))})")


class Samples:
    """All training samples of a corpus under a recipe, by global number.

    `weights`: {source: weight}, or a history of the mixture [(first sample, weights)], see data_order.py.
    `document_end`: the token that ends a document, if attention must stay within documents. `packing`: chunk, concat or
    best_fit. `fill_in_the_middle`: permute fragments of the rows.

    `rows`: rows of each source per epoch, int64 [sources]. `permutation`: that of `fill_in_the_middle`, of the rows of
    `permuted_sources`; None without it.

    Raises UserError if the weights name no source of the corpus, a source is too short, or the corpus' tokenizer lacks
    the tokens of fill-in-the-middle.
    """

    def __init__(
        self,
        corpus: Corpus,
        weights: Mapping[str, float] | Sequence[tuple[int, Mapping[str, float]]],
        seq_len: int,
        seed: int,
        document_end: int | None = None,
        packing: str = CHUNK,
        fill_in_the_middle: FillInTheMiddleRecipe | None = None,
    ) -> None:
        history = [(0, weights)] if isinstance(weights, Mapping) else weights
        for _, named in history:
            check_named(named, corpus, "pretrain.weights")
        self.corpus, self.mixture = corpus, data_order.from_history(history)
        self.seq_len, self.seed, self.document_end, self.packing = seq_len, seed, document_end, packing
        self.streams = [corpus.stream(source) for source in self.mixture.sources]
        self.layouts = [
            # the name, not the number, so that adding a source reshuffles no other
            PACKINGS[packing](source, stream, seq_len, f"{seed}/{source}")
            for source, stream in zip(self.mixture.sources, self.streams, strict=True)
        ]
        self.rows = np.array([layout.rows for layout in self.layouts], dtype=np.int64)
        self.permutation: Permutation | None = None
        if fill_in_the_middle is not None:
            self.permutation = Permutation(
                fill_in_the_middle,
                _sentinels_of(corpus),
                # EOS alone separates documents without BOS, and no text becomes either
                frozenset(corpus.tokenizer[name] for name in ("bos", "eos")),
                seed,
            )
            of_recipe = fill_in_the_middle.sources or self.mixture.sources
            self.permuted_sources = [source for source in self.mixture.sources if source in of_recipe]
            self._is_permuted = np.isin(self.mixture.sources, self.permuted_sources)

    def locate(self, samples: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return (source number, epoch, row) of each global sample number; int64 arrays.

        A row is the number of a chunk in the stream, or of a row of documents in the order of the epoch.
        """
        sources, epochs, positions = self._positions(samples)
        rows = np.empty_like(positions)
        for source, epoch, chosen in _groups(sources, epochs):
            rows[chosen] = self.layouts[source].rows_at(epoch, positions[chosen])
        return sources, epochs, rows

    def _positions(self, samples: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Like `locate`, with the position in the epoch instead of the row."""
        sources, ordinals = self.mixture.locate(samples)
        # numpy divides by one number ten times as fast as by an array
        rows = self.rows[0] if len(self.rows) == 1 else self.rows[sources]
        epochs = ordinals // rows
        return sources, epochs, ordinals - epochs * rows

    def read(self, samples: np.ndarray) -> np.ndarray:
        """Return the tokens of some samples, int32 [samples, L + 1]; short rows are filled up with EOS."""
        return self._read(samples)[0]

    def batch(self, samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return inputs and targets of some samples, int32 [samples, L] each: the target of a token is the next."""
        rows, ignored = self._read(samples)
        following = rows
        if len(ignored):
            from stages.lib.model.loss import IGNORED  # here, since it imports torch

            following = rows.copy()
            following.reshape(-1)[ignored] = IGNORED
        return rows[:, :-1], following[:, 1:]

    def _read(self, samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows, and the places in the flat rows of tokens that are no targets, int64."""
        sources, epochs, positions = self._positions(samples)
        width, packs_documents = self.seq_len + 1, self.layouts[0].packs_documents
        # rows of documents are filled segment by segment, and widened together
        tokens = np.empty((len(sources), width), dtype=self.streams[0].dtype if packs_documents else np.int32)
        ignored = [np.empty(0, dtype=np.int64)]
        for source, epoch, chosen in _groups(sources, epochs):
            rows = self.layouts[source].rows_at(epoch, positions[chosen])
            segments = self.layouts[source].segments(epoch, rows)
            if not packs_documents:
                self.streams[source].gather_rows(segments.starts, chosen, tokens)
                continue
            places = chosen[segments.rows] * width + segments.places
            self.streams[source].gather(segments.starts, segments.counts, places, tokens)
            ignored += self._fill(tokens, chosen, segments, places)
        rows = tokens.view(np.int32) if tokens.itemsize == 4 else tokens.astype(np.int32)
        if self.permutation is not None:
            chosen = np.flatnonzero(self._is_permuted[sources])
            if len(chosen) == len(rows):
                rows = self.permutation.permute(rows, np.asarray(samples, dtype=np.int64))
            else:
                rows[chosen] = self.permutation.permute(rows[chosen], np.asarray(samples, dtype=np.int64)[chosen])
        return rows, np.concatenate(ignored)

    def _fill(
        self, tokens: np.ndarray, chosen: np.ndarray, segments: Segments, places: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Fill up rows after their last segment; return the places filled, and those after closed segments."""
        width, used = tokens.shape[1], np.empty(len(chosen), dtype=np.int64)
        used[segments.rows] = segments.places + segments.counts  # the last segment of a row is written last
        _, behind = ranges(chosen * width + used, width - used)
        tokens.reshape(-1)[behind] = self.corpus.tokenizer["eos"]
        following = places + segments.counts if segments.closed else places[:0]
        return behind, following[following % width > 0]

    def described(self) -> dict[str, Any]:
        """Return the slots of the mixture and the rows of each source per epoch, as JSON data."""
        rows = dict(zip(self.mixture.sources, self.rows.tolist(), strict=True))
        return {"mixture": self.mixture.described(), "rows": rows}

    def figures(self, samples: int) -> dict[str, Any]:
        """Return targets and epochs of each source in the first `samples` samples, as JSON data."""
        tokens, epochs = {}, {}
        for (source, count), layout in zip(self.mixture.taken(samples).items(), self.layouts, strict=True):
            epoch, position = divmod(count, layout.rows)
            tokens[source] = epoch * layout.targets + layout.targets_before(epoch, position)
            epochs[source] = count / layout.rows
        return {"source_tokens": tokens, "source_epochs": epochs}


def _sentinels_of(corpus: Corpus) -> dict[str, int]:
    """Return the ids of the tokens of fill-in-the-middle. Raises UserError if the corpus' tokenizer has none."""
    sentinels = corpus.tokenizer.get("fill_in_the_middle")
    if sentinels is None:
        raise UserError(
            "pretrain.fill_in_the_middle requires a tokenizer with the special tokens of fill-in-the-middle, and that "
            f"of {corpus.manifest.path} has none; set fill_in_the_middle of the tokenizer, or leave it out here"
        )
    return sentinels


def _groups(sources: np.ndarray, epochs: np.ndarray) -> Iterator[tuple[int, int, np.ndarray]]:
    """Yield (source, epoch, ascending indices of its samples) of all pairs that occur."""
    for source, of_source in _equal(sources):
        for epoch, chosen in _equal(epochs[of_source]):
            yield source, epoch, of_source[chosen]


def _equal(numbers: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yield (number, ascending indices at which it stands) of all numbers that occur."""
    if not len(numbers):
        return
    first, last = int(numbers.min()), int(numbers.max())
    if first == last:
        yield first, np.arange(len(numbers))
        return
    for number in range(first, last + 1):
        chosen = np.flatnonzero(numbers == number)
        if len(chosen):
            yield number, chosen


def share_of(first: int, rank: int, world_size: int, global_batch_size: int) -> np.ndarray:
    """Return the global sample numbers of a rank in the step that begins at sample `first`, int64.

    They are an equal, contiguous share of the global batch.
    """
    share = global_batch_size // world_size
    return np.arange(first + rank * share, first + (rank + 1) * share, dtype=np.int64)


class Batches(Protocol):
    """Training samples by global number."""

    def batch(self, samples: np.ndarray, /) -> tuple[np.ndarray, ...]:
        """Return the arrays of some samples, mostly inputs and targets, int32 [samples, L] each."""


class Prefetch:
    """Reads batches ahead in a thread: `samples.batch` of each array of `numbers`.

    An error in the thread is raised by `next`.
    """

    DEPTH = 2

    def __init__(self, samples: Batches, numbers: Iterable[np.ndarray]) -> None:
        self._ready: queue.Queue[Any] = queue.Queue(self.DEPTH)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._fill, args=(samples, numbers), name="prefetch", daemon=True)
        self._thread.start()

    def _fill(self, samples: Batches, numbers: Iterable[np.ndarray]) -> None:
        try:
            for chosen in numbers:
                self._put(samples.batch(chosen))
                if self._closed.is_set():
                    return
            self._put(IndexError("there is no further step to read"))
        except Exception as error:  # handed over to the training thread, which raises it
            self._put(error)

    def _put(self, item: object) -> None:
        while not self._closed.is_set():
            try:
                self._ready.put(item, timeout=0.1)
                return
            except queue.Full:
                continue

    def next(self) -> tuple[np.ndarray, ...]:
        """Return the arrays of the next batch."""
        item = self._ready.get()
        if isinstance(item, Exception):
            raise item
        return item

    def close(self) -> None:
        """Stop the thread."""
        self._closed.set()
        self._thread.join()


SEED = 0
"""The recipe's default: a checkpoint holds only the keys that the user wrote."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """The order of a run's samples.

    `history`: [[first sample, {source: weight}]], the first at sample 0. `begin`: the first sample of this run, None if
    its checkpoints do not store it. `sources`: {source: digest of its training text}, None likewise.
    `fill_in_the_middle` permutes tokens within samples, and changes neither their order nor their rows.
    """

    seq_len: int
    seed: int
    packing: str
    history: list[Any]
    begin: int | None
    sources: dict[str, str] | None
    fill_in_the_middle: FillInTheMiddleRecipe | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the part of the order that a checkpoint stores beside the recipe, as JSON data."""
        return {"history": self.history, "begin": self.begin, "sources": self.sources}

    def samples(self, corpus: Corpus, document_end: int | None = None) -> Samples:
        """Return the Samples of a corpus in this order."""
        return Samples(
            *(corpus, self.history, self.seq_len, self.seed, document_end, self.packing, self.fill_in_the_middle)
        )

    def difference(self, other: Order, corpus: Corpus) -> str | None:
        """Return why this order on `corpus` cannot continue `other`: the property that differs; None if it can.

        `fill_in_the_middle` may differ, like the weights: each row is still read once per epoch.
        """
        for key in ("seq_len", "packing", "seed"):
            if getattr(self, key) != getattr(other, key):
                return key
        for source, digest in (other.sources or {}).items():
            if source not in corpus.sources:
                return f"corpus, which had the source {source}"
            if corpus.digest_of(source) != digest:
                return f"text of the source {source}"
        return None


def from_recipe(recipe: Any, corpus: Corpus, before: Mapping[str, Any] | None = None) -> Order:
    """Return the Order of a run by its PretrainRecipe. `before`: commit.json of the checkpoint that it continues.

    Raises UserError if it has fill-in-the-middle, and the corpus' tokenizer lacks the tokens.
    """
    if recipe.fill_in_the_middle is not None:
        _sentinels_of(corpus)  # before a run directory is made
    begin, history = 0, []
    if before is not None:
        begin = before["samples"]
        history = [entry for entry in from_commit(before).history if entry[0] < begin]
    data_stages = [(stage.step * recipe.global_batch_size, stage.weights) for stage in recipe.data_stages]
    for first, weights in [(0, recipe.weights), *data_stages]:
        if not history or history[-1][1] != weights:  # equal weights continue in the same cycle
            history.append([begin + first, weights])
    named = sorted({source for _, weights in history for source in weights if source in corpus.sources})
    return Order(
        seq_len=recipe.seq_len,
        seed=recipe.seed,
        packing=recipe.packing,
        history=history,
        begin=begin,
        sources={source: corpus.digest_of(source) for source in named},
        fill_in_the_middle=recipe.fill_in_the_middle,
    )


def from_commit(commit: Mapping[str, Any]) -> Order:
    """Return the Order of a pretraining by the commit.json of one of its checkpoints."""
    recipe = commit["recipe"]
    data = commit.get("data", {})  # checkpoints of earlier versions have none
    fill_in_the_middle = recipe.get("fill_in_the_middle")
    if fill_in_the_middle is not None:
        fill_in_the_middle = recipes.load(FillInTheMiddleRecipe, fill_in_the_middle, "pretrain.fill_in_the_middle")
    return Order(
        seq_len=recipe["seq_len"],
        seed=recipe.get("seed", SEED),
        packing=recipe.get("packing", CHUNK),
        history=data.get("history", [[0, recipe["weights"]]]),
        begin=data.get("begin"),
        sources=data.get("sources"),
        fill_in_the_middle=fill_in_the_middle,
    )
