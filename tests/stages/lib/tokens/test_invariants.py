"""Invariants of the training data for any documents, files, ranks, cuts and seeds; in each packing.

| | holds | tests, beside those here with its number |
|---|---|---|
| D1 | the ranks' samples are all samples, and no two have one | test_loader.py: test_D1_D16 |
| D2 | everything comes once an epoch | test_loader.py: test_D2_D9; test_document_rows.py: test_D2_D4 |
| D3 | nothing comes back before its epoch ends, across data stages too | test_document_rows.py: test_D3_D7 |
| D4 | cut anywhere, the rest comes once | test_document_rows.py: test_D2_D4 |
| D5 | segments are contiguous and in order; BOS and EOS are as in the shards | test_document_rows.py: test_D5 |
| D6 | a resume gives the same batches, after a kill too | test_pretrain.py: test_killed_run |
| D7 | no change of the world size, at any step, changes the order | test_document_rows.py: test_D3_D7 |
| D8 | shares are the weights, rounded to 1/4096 | test_order.py; test_initial.py |
| D9 | packing loses, repeats and reorders nothing | test_document_rows.py: test_D9, test_D5 |
| D10 | counts are exact | test_document_rows.py: test_D10 |
| D11 | two processes have the same stream | test_loader.py: test_D11 |
| D12 | empty, one-token and special documents are safe | all that draw the lengths of documents |
| D13 | seeds and epochs are independent | test_document_rows.py: test_D13 |
| D14 | weights and position in the data are one checkpoint | test_pretrain.py: test_killed_run |
| D15 | a shard that changed is named | test_corpus.py: spoilt; test_verify.py; test_document_rows.py: test_D15 |
| D16 | ranks share tokens, not files | test_loader.py: test_D1_D16 |

Two cases in which fms-fsdp's loader loses, repeats or ends are examples of D2: EMPTY and UNEQUAL of made.py.
"""

import itertools
import json
import time
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.lib.tokens.corpus import Corpus
from stages.lib.tokens.loader import Prefetch, Samples, share_of
from stages.lib.tokens.packing import PACKINGS
from tests.stages.lib.tokens.made import WORLD_SIZES, Made, enough, lengths, write_manifest, write_shard

GLOBAL_BATCH = 24
some = settings(max_examples=10, deadline=None)
every_packing = pytest.mark.parametrize("packing", PACKINGS)


weights = st.dictionaries(st.sampled_from("abc"), st.floats(0.1, 10), min_size=1)
histories = st.lists(st.tuples(st.integers(1, 60), weights), min_size=1, max_size=4)


@every_packing
@some
@given(data_stages=histories, seed=st.integers(0, 5), number=st.integers(0, 300))
def test_D3_D8_D10_each_source_resumes_over_data_stages_where_it_was(packing, data_stages, seed, number):
    firsts = [0, *itertools.accumulate(length for length, _ in data_stages)]
    history = [(first, named) for first, (_, named) in zip(firsts, data_stages, strict=False)]
    by_source = {"a": [[30, 9]], "b": [[50]], "c": [[12, 12, 12]]}
    with Made(by_source, packing, 6, seed, weights=history) as (samples, _):
        sources, epochs, rows = samples.locate(np.arange(number))
        taken = Counter(sources.tolist())
        by_name = {name: taken[index] for index, name in enumerate(samples.mixture.sources)}
        assert samples.mixture.taken(number) == by_name
        for index, name in enumerate(samples.mixture.sources):
            with Made({name: by_source[name]}, packing, 6, seed) as (alone, _):
                _, uncut_epochs, uncut_rows = alone.locate(np.arange(taken[index]))
            assert epochs[sources == index].tolist() == uncut_epochs.tolist()
            assert rows[sources == index].tolist() == uncut_rows.tolist()
        for sample, source in enumerate(sources.tolist()):
            _, named = [entry for entry in history if entry[0] <= sample][-1]
            assert samples.mixture.sources[source] in named


@every_packing
@some
@given(made=lengths, cut=st.integers(0, 9), chain=st.sampled_from(WORLD_SIZES))
def test_D6_D14_a_resume_needs_no_more_than_the_number_of_samples_seen(packing, made, cut, chain):
    with Made({"a": enough(made)}, packing, 5) as (samples, _):
        numbers = [share_of(step * GLOBAL_BATCH, chain - 1, chain, GLOBAL_BATCH) for step in range(cut, cut + 3)]
        killed = Prefetch(samples, numbers)
        killed.next()
        killed.close()  # with batches read ahead that nobody trained on
        fresh = Samples(samples.corpus, {"a": 1.0}, 5, 0, packing=packing)
        resumed = Prefetch(fresh, numbers)
        for wanted in numbers:
            for ours, uncut in zip(resumed.next(), samples.batch(wanted), strict=True):
                assert np.array_equal(ours, uncut)
        with pytest.raises(IndexError):
            resumed.next()
        resumed.close()


@pytest.fixture(scope="module")
def trillion(tmp_path_factory):
    """A corpus of 10^12 tokens: 2,000 shards of 5 * 10^8 tokens, with holes where nothing was written."""
    directory = tmp_path_factory.mktemp("trillion")
    tokens, described = 5 * 10**8, []
    real = write_shard(directory / "real.arrow", [np.arange(9, dtype=np.uint16)], "uint16")
    frame = (directory / "real.arrow").read_bytes()
    (begin,) = [batch["values_at"] for batch in real["batches"]]
    size = begin + 2 * tokens + len(frame)
    for number in range(2000):
        with open(directory / f"{number}.arrow", "wb") as file:
            file.write(frame[:begin])
            file.truncate(size - len(frame))
            file.seek(0, 2)
            file.write(frame)
        batch = {"documents": 1, "tokens": tokens, "offsets_at": 0, "values_at": begin}
        described.append({"path": f"{number}.arrow", "bytes": size, "sha256": f"{number:064x}", "batches": [batch]})
    return write_manifest(directory, {"a": described})


def test_D6_a_batch_of_a_trillion_tokens_comes_within_a_second_wherever_the_training_is(trillion):
    for seen in (0, 10**8):
        seconds = []
        for _ in range(3):  # the shortest: a busy machine makes CPU time longer too
            begun = time.process_time()
            samples = Samples(Corpus(trillion), {"a": 1.0}, 4096, 0)
            assert samples.read(np.arange(seen, seen + 16)).shape == (16, 4097)
            seconds.append(time.process_time() - begun)
            assert len(samples.streams[0]) == 10**12 and len(samples.streams[0]._files) <= 16
            samples.streams[0].close()
        assert min(seconds) < 1, seconds


def test_D14_what_a_checkpoint_must_say_of_the_data_is_less_than_a_kilobyte(corpus, uninterrupted):
    (path, *_) = uninterrupted.glob("train/*/checkpoints/*/commit.json")
    commit = json.loads(path.read_text())
    assert len(json.dumps({"samples": commit["samples"], "data": commit["data"]})) < 1000
