"""The order of chunks: invariants for any documents, world size, cut and seed; see test_invariants.py."""

import hashlib
import itertools
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.lib import manifest
from stages.lib.errors import UserError
from stages.lib.tokens.corpus import Corpus
from stages.lib.tokens.loader import Prefetch, Samples, share_of
from tests.stages.lib.tokens import shard_files

BOS, EOS = 1, 2
WORLD_SIZES = (1, 2, 3, 4, 6, 8, 12, 24)
few = settings(max_examples=12, deadline=None)

# Documents of any length, the empty one (BOS, EOS) and the one of special tokens only among them.
bodies = st.lists(st.lists(st.integers(0, 400), max_size=12), min_size=12, max_size=40)
sources = st.fixed_dictionaries(
    {"a": st.lists(bodies, min_size=1, max_size=3), "b": st.lists(bodies, min_size=1, max_size=3)}
)
weights = st.fixed_dictionaries({"a": st.floats(0.1, 10), "b": st.floats(0.1, 10)})


def write_corpus(directory, sources):
    """A corpus manifest over real shards: `sources` {name: [shard: [document: [id]]]}, without BOS and EOS."""
    described = {}
    for name, made in sources.items():
        files = []
        for number, documents in enumerate(made):
            path = f"{name}-{number}.arrow"
            with_bos_eos = [np.array([BOS, *document, EOS], np.uint16) for document in documents]
            files.append({"path": path, **shard_files.write(directory / path, with_bos_eos, "uint16")})
        described[name] = {"train": {"shards": files}}
    path = directory / "manifest.json"
    identity = {"tokenizer": {"vocab_size": 512}, "dtype": "uint16", "sources": described}
    manifest.write(path, "index", identity, {})
    return path


def tokens_of(made):
    """The stream that a source's documents are."""
    return [token for shard in made for document in shard for token in (BOS, *document, EOS)]


class Made:
    """A corpus in a temporary directory, and samples over it."""

    def __init__(self, sources, seq_len=7, weights=None, seed=0):
        self.directory = tempfile.TemporaryDirectory()
        self.corpus = Corpus(write_corpus(Path(self.directory.name), sources))
        self.samples = Samples(self.corpus, weights or dict.fromkeys(sources, 1.0), seq_len, seed)

    def __enter__(self):
        return self.samples

    def __exit__(self, *_):
        for stream in self.samples.streams:
            stream.close()
        self.directory.cleanup()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Two sources of a few hundred chunks each, for tests without random documents."""
    chance = np.random.default_rng(0)
    made = {name: [[chance.integers(3, 400, size).tolist() for size in chance.integers(0, 60, 60)]] for name in "ab"}
    return Corpus(write_corpus(tmp_path_factory.mktemp("corpus"), made))


@pytest.fixture(scope="module")
def samples(corpus):
    return Samples(corpus, {"a": 2.0, "b": 1.0}, 7, 3)


@given(st.integers(0, 10**9), st.integers(1, 5))
@few
def test_D1_ranks_share_each_step_between_them(step, share):
    global_batch_size = 24 * share
    for world_size in WORLD_SIZES:
        ranks = [
            share_of(step * global_batch_size, rank, world_size, global_batch_size).tolist()
            for rank in range(world_size)
        ]
        assert sum(ranks, []) == list(range(step * global_batch_size, (step + 1) * global_batch_size))


@given(sources, st.integers(2, 9), st.integers(0, 9))
@few
def test_D2_D9_every_chunk_comes_once_an_epoch_and_less_than_a_chunk_is_left_out(made, seq_len, seed):
    with Made(made, seq_len, seed=seed) as samples:
        for number, name in enumerate(samples.mixture.sources):
            stream = tokens_of(made[name])
            chunks = int(samples.rows[number])
            assert 0 <= len(stream) - 1 - chunks * seq_len < seq_len
            ordinals = np.flatnonzero(samples.mixture.locate(np.arange(4 * chunks))[0] == number)[: 2 * chunks]
            rows = samples.read(ordinals).tolist()
            expected = sorted(stream[k * seq_len : k * seq_len + seq_len + 1] for k in range(chunks))
            for epoch in (0, 1):
                assert sorted(rows[epoch * chunks : (epoch + 1) * chunks]) == expected


def test_D3_no_chunk_comes_back_before_its_epoch_ends(samples):
    sources, epochs, chunks = samples.locate(np.arange(3 * int(samples.rows.sum())))
    seen = set(zip(sources.tolist(), epochs.tolist(), chunks.tolist(), strict=True))
    assert len(seen) == len(sources)
    for source in (0, 1):
        assert (np.diff(epochs[sources == source]) >= 0).all()


@given(data=st.data())
@few
def test_D7_any_change_of_the_world_size_leaves_the_order(samples, data):
    uncut = samples.read(np.arange(24 * 6))
    rows = []
    for step in range(6):
        world_size = data.draw(st.sampled_from(WORLD_SIZES))
        rows += [samples.read(share_of(24 * step, rank, world_size, 24)) for rank in range(world_size)]
    assert np.array_equal(np.concatenate(rows), uncut)


@given(weights, st.integers(0, 20000))
@few
def test_D8_tokens_of_a_source_are_within_a_chunk_of_its_rounded_share(corpus, weights, number):
    mixed = Samples(corpus, weights, 7, 3)
    sources, _, _ = mixed.locate(np.arange(number))
    for index, count in enumerate(mixed.mixture.counts.tolist()):
        assert abs(int((sources == index).sum()) - number * count / 4096) < 1


@given(st.integers(0, 5000))
@few
def test_D10_counts_are_exact(samples, number):
    sources, epochs, _ = samples.locate(np.arange(number))
    taken = samples.mixture.taken(number)
    for index, name in enumerate(samples.mixture.sources):
        assert taken[name] == (sources == index).sum()
        if taken[name]:
            assert epochs[sources == index].max() == (taken[name] - 1) // samples.rows[index]


def test_D11_the_stream_is_the_same_in_two_processes_whatever_their_hash_seed(corpus, samples):
    script = (
        "import sys, hashlib, numpy\n"
        "from stages.lib.tokens.corpus import Corpus\n"
        "from stages.lib.tokens.loader import Samples\n"
        "weights = {name: {'a': 2.0, 'b': 1.0}[name] for name in {'a', 'b'}}\n"
        "rows = Samples(Corpus(sys.argv[1]), weights, 7, 3).read(numpy.arange(500))\n"
        "print(hashlib.sha256(rows.tobytes()).hexdigest())\n"
    )
    home = Path(__file__).resolve().parents[4]
    printed = set()
    for seed, locale in (("1", "C"), ("2", "C.UTF-8")):
        environment = os.environ | {"PYTHONHASHSEED": seed, "LC_ALL": locale, "PYTHONPATH": str(home)}
        command = [sys.executable, "-c", script, corpus.manifest.path]
        printed.add(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
    assert printed == {hashlib.sha256(samples.read(np.arange(500)).tobytes()).hexdigest() + "\n"}


def test_D12_empty_and_one_token_documents_and_documents_of_special_tokens_are_whole():
    documents = [[], [7], [EOS, EOS], [BOS], [], [0], [], []] * 3
    with Made({"a": [documents, documents]}, seq_len=2) as samples:
        stream = tokens_of({"a": [documents, documents]}["a"])
        chunks = int(samples.rows[0])
        rows = sorted(samples.read(np.arange(chunks)).tolist())
        assert rows == sorted(stream[k * 2 : k * 2 + 3] for k in range(chunks))


def test_D13_seeds_and_epochs_give_unrelated_orders_and_sources_do_not_touch_each_other(corpus):
    def order(seed, epoch, weights):
        mixed = Samples(corpus, weights, 7, seed)
        number = mixed.mixture.sources.index("a")
        chunks = int(mixed.rows[number])
        sources, epochs, found = mixed.locate(np.arange(8 * chunks))
        return found[(sources == number) & (epochs == epoch)].tolist()

    orders = [order(seed, epoch, {"a": 1, "b": 1}) for seed in (0, 1) for epoch in (0, 1)]
    for first, second in itertools.combinations(orders, 2):
        assert sum(x == y for x, y in zip(first, second, strict=True)) < 10
        rotations = {(y - x) % len(first) for x, y in zip(first, second, strict=True)}
        assert len(rotations) > len(first) / 4  # the second is no rotation of the first
    assert order(0, 0, {"a": 1}) == orders[0]
    assert order(0, 0, {"a": 1, "b": 3}) == orders[0]


def shares(steps):
    """The samples of the second of two ranks in these steps, eight samples each."""
    return [share_of(8 * step, 1, 2, 8) for step in steps]


@given(st.integers(0, 40), st.integers(1, 8), st.integers(1, 10))
@few
def test_D6_a_resume_at_any_step_reads_on_where_it_was(samples, start, steps, prefetched):
    before = Prefetch(samples, shares(range(start, start + prefetched)))
    before.next()
    before.close()  # killed with batches read ahead that nobody trained on
    resumed = Prefetch(samples, shares(range(start, start + steps)))
    for step in range(start, start + steps):
        inputs, targets = resumed.next()
        rows = samples.read(share_of(8 * step, 1, 2, 8))
        assert np.array_equal(inputs, rows[:, :-1]) and np.array_equal(targets, rows[:, 1:])
    with pytest.raises(IndexError):
        resumed.next()
    resumed.close()


def test_what_fails_while_reading_ahead_is_raised_where_the_batch_is_asked_for(tmp_path):
    path = write_corpus(tmp_path, {"a": [[list(range(3, 300))]]})
    samples = Samples(Corpus(path), {"a": 1.0}, 7, 0)
    (tmp_path / "a-0.arrow").write_bytes(b"")
    prefetch = Prefetch(samples, [np.arange(4)])
    with pytest.raises(UserError, match=r"a-0\.arrow ends before its last token"):
        prefetch.next()
    prefetch.close()


def test_rows_are_int32_of_one_token_more_than_the_sequence(samples):
    rows = samples.read(np.arange(5))
    assert (rows.shape, rows.dtype) == ((5, 8), np.int32)


def test_weights_of_a_source_that_the_corpus_has_not_are_refused(corpus):
    with pytest.raises(UserError, match=r"pretrain\.weights\.c must name a source of the corpus \(a, b\)"):
        Samples(corpus, {"a": 1.0, "c": 1.0}, 7, 0)


def test_a_source_shorter_than_a_sample_is_refused(tmp_path):
    corpus = Corpus(write_corpus(tmp_path, {"a": [[[5, 6]]]}))
    assert Samples(corpus, {"a": 1.0}, 3, 0).read([0]).tolist() == [[BOS, 5, 6, EOS]]
    with pytest.raises(
        UserError, match=r"pretrain\.seq_len must be less than the tokens of each source: a has 4, got 4"
    ):
        Samples(corpus, {"a": 1.0}, 4, 0)
