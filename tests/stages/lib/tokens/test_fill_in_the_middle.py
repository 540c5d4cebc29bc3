"""Fill-in-the-middle permutes fragments of rows, keeps all else of them, and depends on nothing but sample numbers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.lib.tokens.corpus import Corpus
from stages.lib.tokens.fill_in_the_middle import MIN_TOKENS, FillInTheMiddleRecipe, Permutation
from stages.lib.tokens.loader import Prefetch, Samples, share_of
from tests.stages.lib.tokens.made import BOS, EOS, write

PREFIX, MIDDLE, SUFFIX = 1_000_001, 1_000_002, 1_000_003
SENTINELS = {"prefix": PREFIX, "middle": MIDDLE, "suffix": SUFFIX}
PACKINGS = ("chunk", "concat", "best_fit")


def corpus_of(directory, lengths):
    """A corpus of sources with documents of some lengths, whose tokenizer has the special tokens."""
    corpus = Corpus(write(directory, {name: [of_source] for name, of_source in lengths.items()})[0])
    corpus.tokenizer |= {"bos": BOS, "fill_in_the_middle": SENTINELS}
    return corpus


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Two sources of documents of 2 to 300 tokens."""
    sizes = np.random.default_rng(0).integers(2, 300, 400).tolist()
    return corpus_of(tmp_path_factory.mktemp("corpus"), {"a": sizes[:200], "b": sizes[200:]})


def both(corpus, seq_len=128, packing="chunk", seed=3, weights=None, **recipe):
    """Samples with fill-in-the-middle, and the same without it."""
    arguments = corpus, weights or {"a": 2.0, "b": 1.0}, seq_len, seed, None, packing
    return Samples(*arguments, FillInTheMiddleRecipe(**recipe)), Samples(*arguments)


def fragments_of(row):
    """Yield (first column, tokens) of the fragments of a row: what stands between BOS, EOS and the ends."""
    begin = 0
    for column, token in enumerate([*row, EOS]):
        if token in (BOS, EOS):
            if column > begin:
                yield begin, row[begin:column]
            begin = column + 1


def restored(fragment):
    """Return (prefix, middle, suffix) of a permuted fragment; SPM has its prefix in the middle."""
    assert fragment[0] == PREFIX
    suffix_at, middle_at = fragment.index(SUFFIX), fragment.index(MIDDLE)
    assert suffix_at < middle_at
    return fragment[1:suffix_at], fragment[middle_at + 1 :], fragment[suffix_at + 1 : middle_at]


@given(
    st.lists(st.integers(0, 90), min_size=1, max_size=30),
    st.sampled_from(PACKINGS),
    st.integers(MIN_TOKENS, 70),
    st.sampled_from([0.3, 1.0]),
)
@settings(max_examples=60, deadline=None)
def test_a_permuted_fragment_is_the_original_but_for_its_last_three_tokens(
    tmp_path_factory, lengths, packing, seq_len, rate
):
    corpus = corpus_of(tmp_path_factory.mktemp("made"), {"a": [*lengths, 90]})
    permuted, plain = both(corpus, seq_len, packing, weights={"a": 1.0}, rate=rate)
    numbers = np.arange(40)
    for row, original in zip(permuted.read(numbers).tolist(), plain.read(numbers).tolist(), strict=True):
        assert [token in (BOS, EOS) for token in row] == [token in (BOS, EOS) for token in original]
        for (begin, fragment), (_, before) in zip(fragments_of(row), fragments_of(original), strict=True):
            if fragment == before:
                assert rate < 1 or len(before) < MIN_TOKENS
                continue
            assert len(before) >= MIN_TOKENS, begin
            prefix, middle, suffix = restored(fragment)
            if prefix:
                assert prefix + middle + suffix == before[:-3]
            else:  # SPM, or an empty prefix: prefix and middle stand together
                assert middle + suffix == before[:-3]
    (inputs, targets), (_, expected) = permuted.batch(numbers), plain.batch(numbers)
    assert ((targets < 0) == (expected < 0)).all()  # padding is no target, with or without
    assert inputs.dtype == targets.dtype == np.int32


def test_shares_and_cuts_are_those_of_the_recipe(corpus):
    permuted, plain = both(corpus, rate=0.3, spm_rate=0.25)
    rows, originals = (samples.read(np.arange(6000)).tolist() for samples in (permuted, plain))
    eligible, lengths = 0, []
    for row, original in zip(rows, originals, strict=True):
        eligible += sum(len(fragment) >= MIN_TOKENS for _, fragment in fragments_of(original))
        lengths += [[*map(len, restored(fragment))] for _, fragment in fragments_of(row) if fragment[0] == PREFIX]
    assert len(lengths) / eligible == pytest.approx(0.3, abs=0.02)
    shares = np.array(lengths) / np.sum(lengths, axis=1, keepdims=True)
    is_spm = shares[:, 0] == 0
    # of PSM, a prefix is empty if a cut is at the begin: 2 of the about 50 places
    assert is_spm.mean() == pytest.approx(0.25 + 0.75 * 2 / 50, abs=0.03)
    # two uniform cuts: each part has a third of the text; of SPM, prefix and middle together two thirds
    assert shares[~is_spm].mean(axis=0) == pytest.approx([1 / 3, 1 / 3, 1 / 3], abs=0.03)
    assert shares[is_spm].mean(axis=0) == pytest.approx([0, 2 / 3, 1 / 3], abs=0.03)


@pytest.mark.parametrize("packing", PACKINGS)
def test_other_sources_are_untouched_and_the_order_stays(corpus, packing):
    permuted, plain = both(corpus, packing=packing, rate=1.0, sources=["b"])
    numbers = np.arange(1000)
    sources, *_ = permuted.locate(numbers)
    assert all((one == other).all() for one, other in zip(permuted.locate(numbers), plain.locate(numbers), strict=True))
    rows, originals = permuted.read(numbers), plain.read(numbers)
    assert np.array_equal(rows[sources == 0], originals[sources == 0])
    assert (rows[sources == 1] != originals[sources == 1]).any(axis=1).mean() > 0.9
    assert permuted.figures(1000) == plain.figures(1000)


@pytest.mark.parametrize("packing", PACKINGS)
def test_ranks_micro_batches_prefetch_and_a_resume_do_not_change_a_bit(corpus, packing):
    expected = both(corpus, packing=packing)[0].read(np.arange(480))
    fresh = both(corpus, packing=packing)[0]
    for world_size in (1, 2, 3, 8):
        for first in (456, 240, 0):  # in any order, as after a resume
            shares = [fresh.read(share_of(first, rank, world_size, 24)) for rank in range(world_size)]
            assert np.array_equal(np.concatenate(shares), expected[first : first + 24])
    prefetch = Prefetch(fresh, [np.arange(first, first + 7) for first in range(100, 128, 7)])
    inputs = np.concatenate([prefetch.next()[0] for _ in range(4)])
    prefetch.close()
    assert np.array_equal(inputs, expected[100:128, :-1])
    assert np.array_equal(fresh.read([5]), expected[5:6])  # any sequence of numbers


def test_each_epoch_and_seed_has_draws_of_its_own(corpus):
    permuted, _ = both(corpus, weights={"a": 1.0}, rate=1.0)
    _, _, rows = permuted.locate(np.arange(permuted.rows[0] * 2))
    row = rows[0]
    first, second = np.flatnonzero(rows == row)
    one, other = permuted.read(np.array([first, second]))
    assert sorted(set(one) - set(SENTINELS.values())) == sorted(set(other) - set(SENTINELS.values()))
    assert (one != other).any()
    other_seed = both(corpus, weights={"a": 1.0}, rate=1.0, seed=4)[0]
    at = np.flatnonzero(other_seed.locate(np.arange(permuted.rows[0]))[2] == row)
    assert (other_seed.read(at)[0] != one).any()


def test_bits_are_those_of_earlier_versions():
    """If the draws change, a resumed run reads other data than its checkpoints say."""
    permutation = Permutation(FillInTheMiddleRecipe(rate=0.9), SENTINELS, frozenset({BOS, EOS}), seed=0)
    rows = np.tile(np.arange(10, 43), (5, 1))
    permuted = permutation.permute(rows, np.array([0, 1, 2, 10**6, 10**12])).tolist()
    found = [[row.index(token) for token in SENTINELS.values() if token in row] for row in permuted]
    assert found == FROZEN


FROZEN = [[0, 26, 1], [0, 20, 8], [0, 20, 6], [0, 23, 20], []]  # columns of prefix, middle and suffix
