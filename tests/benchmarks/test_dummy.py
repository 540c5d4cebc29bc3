"""Random tokens: the loader's interface, and a pure function of the sample's number."""

import time

import numpy as np

from benchmarks.dummy import DummySamples
from stages.lib.tokens.loader import Prefetch


def test_shape_dtype_and_the_target_is_the_next_token():
    inputs, targets = DummySamples(500, 16, 0).batch(np.arange(3))
    assert inputs.shape == targets.shape == (3, 16)
    assert inputs.dtype == targets.dtype == np.int32
    assert (inputs[:, 1:] == targets[:, :-1]).all()


def test_a_sample_depends_on_its_number_and_the_seed_alone():
    samples = DummySamples(500, 16, 7)
    together, _ = samples.batch(np.array([10**12, 3, 4]))
    alone, _ = DummySamples(500, 16, 7).batch(np.array([3]))
    assert (together[1] == alone[0]).all()
    assert (together[1] != together[2]).any()
    assert (DummySamples(500, 16, 8).batch(np.array([3]))[0] != alone).any()


def test_tokens_are_uniformly_distributed():
    inputs, _ = DummySamples(10, 1000, 0).batch(np.arange(100))
    counts = np.bincount(inputs.ravel(), minlength=11)
    assert counts[10] == 0
    assert (abs(counts[:10] - 10_000) < 500).all()  # 5 standard deviations


def test_dummy_samples_are_prefetched():
    samples = DummySamples(500, 16, 0)
    numbers = [np.arange(2), np.arange(2, 4)]
    prefetch = Prefetch(samples, numbers)
    try:
        for batch in numbers:
            inputs, _ = prefetch.next()
            assert (inputs == samples.batch(batch)[0]).all()
    finally:
        prefetch.close()


def test_generation_is_faster_than_a_million_tokens_per_cpu_second():
    samples, numbers = DummySamples(128_256, 4096, 0), np.arange(64)
    begun = time.process_time()
    samples.batch(numbers)
    assert len(numbers) * 4096 / (time.process_time() - begun) > 1e6
