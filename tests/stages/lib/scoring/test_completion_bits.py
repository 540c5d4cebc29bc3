"""Bits per byte of completions: of which pairs, and the score of one."""

import math

import pytest

from stages.lib.errors import UserError
from stages.lib.scoring import completion_bits, completion_score
from stages.lib.sources.prompt_completion import Pair, PairSource


def source_of(completions):
    pairs = [Pair(f"{n}", f"What of {n}?", completion, "validation") for n, completion in enumerate(completions)]
    return PairSource("qa", "digest", [Pair("t", "What of t?", "An answer", "train")], pairs)


def test_rows_are_held_out_pairs_as_they_are():
    source = source_of([f"Answer {n}" for n in range(9)])
    rows = completion_bits.rows(source, 20, seed=0, longest=99)
    assert sorted((row["id"], row["context"], row["completion"]) for row in rows) == [
        (pair.id, pair.prompt, pair.completion) for pair in source.validation
    ]
    assert {row["source"] for row in rows} == {"qa"}


def test_the_same_seed_takes_the_same_and_another_seed_others():
    source = source_of([f"Answer {n}" for n in range(60)])
    first = completion_bits.rows(source, 20, seed=0, longest=99)
    assert len(first) == 20
    assert completion_bits.rows(source, 20, seed=0, longest=99) == first
    assert completion_bits.rows(source, 20, seed=1, longest=99) != first


def test_longer_completions_are_left_out():
    source = source_of(["short", "\u00e9" * 9, "long enough to be left out"])
    assert {row["completion"] for row in completion_bits.rows(source, 9, seed=0, longest=18)} == {"short", "\u00e9" * 9}
    with pytest.raises(UserError, match=r"source qa must hold out pairs with completions of at most 4 bytes"):
        completion_bits.rows(source, 9, seed=0, longest=4)


def test_a_completion_of_half_a_chance_for_each_byte_has_one_bit_a_byte():
    completion = "\u00e9ven"  # five bytes
    found = completion_score.score({"completion": completion}, [(5 * math.log(0.5), False)])
    assert found == {"bits_per_byte": pytest.approx(1)}
