"""The loader: ranks share each step, chunks come once an epoch, the same in each process; see test_invariants.py."""

import hashlib
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stages.lib.errors import UserError
from stages.lib.tokens.corpus import Corpus
from stages.lib.tokens.loader import Prefetch, Samples, share_of
from tests.helpers.training import environment
from tests.stages.lib.tokens.made import BOS, EMPTY, EOS, UNEQUAL, WORLD_SIZES, Made, enough, lengths, write

few = settings(max_examples=12, deadline=None)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Two sources of a few hundred chunks each."""
    sizes = np.random.default_rng(0).integers(2, 60, 120).tolist()
    return Corpus(write(tmp_path_factory.mktemp("corpus"), {"a": [sizes[:60]], "b": [sizes[60:]]})[0])


@pytest.fixture(scope="module")
def samples(corpus):
    return Samples(corpus, {"a": 2.0, "b": 1.0}, 7, 3)


@given(st.integers(0, 10**9), st.integers(1, 5))
@few
def test_D1_D16_ranks_share_each_step_between_them_in_equal_parts(step, share):
    global_batch_size = 24 * share
    for world_size in WORLD_SIZES:
        ranks = [
            share_of(step * global_batch_size, rank, world_size, global_batch_size).tolist()
            for rank in range(world_size)
        ]
        assert sum(ranks, []) == list(range(step * global_batch_size, (step + 1) * global_batch_size))
        assert {len(rank) for rank in ranks} == {global_batch_size // world_size}


@given(lengths, lengths, st.integers(2, 9), st.integers(0, 9))
@example(EMPTY, UNEQUAL, 6, 0)
@few
def test_D2_D9_every_chunk_comes_once_an_epoch_and_less_than_a_chunk_is_left_out(made, other, seq_len, seed):
    with Made({"a": enough(made), "b": enough(other)}, "chunk", seq_len, seed) as (samples, documents):
        for number, name in enumerate(samples.mixture.sources):
            stream = [token for document in documents[name] for token in document]
            chunks = int(samples.rows[number])
            assert 0 <= len(stream) - 1 - chunks * seq_len < seq_len
            ordinals = np.flatnonzero(samples.mixture.locate(np.arange(4 * chunks))[0] == number)[: 2 * chunks]
            rows = samples.read(ordinals).tolist()
            expected = sorted(stream[k * seq_len : k * seq_len + seq_len + 1] for k in range(chunks))
            for epoch in (0, 1):
                assert sorted(rows[epoch * chunks : (epoch + 1) * chunks]) == expected


def test_D11_the_stream_is_the_same_in_two_processes_whatever_their_hash_seed(corpus, samples):
    script = (
        "import sys, hashlib, numpy\n"
        "from stages.lib.tokens.corpus import Corpus\n"
        "from stages.lib.tokens.loader import Samples\n"
        "weights = {name: {'a': 2.0, 'b': 1.0}[name] for name in {'a', 'b'}}\n"
        "rows = Samples(Corpus(sys.argv[1]), weights, 7, 3).read(numpy.arange(500))\n"
        "print(hashlib.sha256(rows.tobytes()).hexdigest())\n"
    )
    printed = set()
    for seed, locale in (("1", "C"), ("2", "C.UTF-8")):
        variables = environment() | {"PYTHONHASHSEED": seed, "LC_ALL": locale}
        command = [sys.executable, "-c", script, corpus.manifest.path]
        printed.add(subprocess.run(command, env=variables, capture_output=True, text=True, check=True).stdout)
    assert printed == {hashlib.sha256(samples.read(np.arange(500)).tobytes()).hexdigest() + "\n"}


def test_what_fails_while_reading_ahead_is_raised_where_the_batch_is_asked_for(tmp_path):
    samples = Samples(Corpus(write(tmp_path, {"a": [[300]]})[0]), {"a": 1.0}, 7, 0)
    (tmp_path / "a-0.arrow").write_bytes(b"")
    prefetch = Prefetch(samples, [np.arange(4)])
    with pytest.raises(UserError, match=r"a-0\.arrow ends before its last token"):
        prefetch.next()
    prefetch.close()


def test_a_source_shorter_than_a_sample_is_refused(tmp_path):
    corpus = Corpus(write(tmp_path, {"a": [[4]]})[0])
    assert Samples(corpus, {"a": 1.0}, 3, 0).read([0]).tolist() == [[BOS, 3, 4, EOS]]
    message = r"pretrain\.seq_len must be less than the tokens of each source: a has 4, got 4"
    with pytest.raises(UserError, match=message):
        Samples(corpus, {"a": 1.0}, 4, 0)
