"""Bits per byte of completions: the pairs that are taken, and the score of one."""

import math

import pytest

from stages.lib.errors import UserError
from stages.lib.scoring.tasks import completion_score
from stages.lib.scoring.tasks.completions import CompletionBits
from stages.lib.scoring.tasks.task import TaskOptions
from stages.lib.sources.examples import Pair, PairSource


def source_of(completions):
    pairs = [Pair(f"{n}", f"What of {n}?", completion, "validation") for n, completion in enumerate(completions)]
    return PairSource("qa", "digest", [Pair("t", "What of t?", "An answer", "train")], pairs)


def rows_of(source, num_examples, seed=0, longest=99):
    options = TaskOptions(bytes_per_source=1, num_examples=num_examples, seed=seed, max_completion_bytes=longest)
    return CompletionBits().rows(source, options)["completion_bits"]


def test_rows_are_unchanged_validation_pairs():
    source = source_of([f"Answer {n}" for n in range(9)])
    rows = rows_of(source, 20)
    assert sorted((row["id"], row["context"], row["completion"]) for row in rows) == [
        (pair.id, pair.prompt, pair.completion) for pair in source.validation
    ]
    assert {row["source"] for row in rows} == {"qa"}


def test_the_same_seed_takes_the_same_and_another_seed_others():
    source = source_of([f"Answer {n}" for n in range(60)])
    first = rows_of(source, 20)
    assert len(first) == 20
    assert rows_of(source, 20) == first
    assert rows_of(source, 20, seed=1) != first


def test_longer_completions_are_skipped():
    source = source_of(["short", "\u00e9" * 9, "long enough to be skipped"])
    assert {row["completion"] for row in rows_of(source, 9, longest=18)} == {"short", "\u00e9" * 9}
    with pytest.raises(UserError, match=r"source qa must have completions of at most 4 bytes"):
        rows_of(source, 9, longest=4)


def test_completion_with_probability_one_half_per_byte_has_one_bit_per_byte():
    completion = "\u00e9ven"  # five bytes
    found = completion_score.score({"completion": completion}, [(5 * math.log(0.5), False)])
    assert found == {"bits_per_byte": pytest.approx(1)}
