"""Trivial readers: rules without a model, on questions whose answers each rule knows or cannot know."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.lib.scoring.tasks import task_files


def question(context, choices, answer=0):
    return {"context": context, "choices": choices, "answer": answer}


INDENTED = question("def f():\n    a = 1\n\n", ["b\n", "    c\n", "        d\n", "e\n"], answer=1)
SHARED = question("the walrus sleeps\n", ["the rest\n", "a walrus\n", "the dog\n", "nothing\n"], answer=1)
LONGEST = question("", ["a\n", "bb\n", "cccc\n", "dddd\n"], answer=3)
COMMON = question("", ["an odd\n", "the the\n", "the rare\n", "other\n"], answer=1)
OTHERS = [question("the end\n", ["the end\n", "the\n", "an end\n", "ends\n"])] * 4


@pytest.mark.parametrize(
    ("reader", "asked", "credit"),
    [
        ("first", INDENTED, 0),
        ("first", OTHERS[0], 1),
        ("indent", INDENTED, 1),
        ("shared_words", SHARED, 1),
        ("longest", LONGEST, 0.5),
        ("unigram", COMMON, 1),
    ],
)
def test_a_reader_is_right_where_its_rule_is(reader, asked, credit):
    alone = task_files.accuracies([asked])[reader]["value"]
    among = task_files.accuracies([asked, *OTHERS])[reader]["value"] * 5
    others = task_files.accuracies(OTHERS)[reader]["value"] * 4
    if reader != "shared_words":  # which counts words over all contexts
        assert alone == credit
    if reader != "unigram":  # which counts words over all choices, so that one question changes the others' credits
        assert among - others == pytest.approx(credit)


@settings(deadline=None)
@given(st.lists(st.tuples(st.text("ab \n"), st.lists(st.text("ab ."), min_size=4, max_size=4)), min_size=2, max_size=9))
def test_over_all_answers_a_reader_is_right_once_per_question(drawn):
    """Whatever a rule prefers, its credits over the four possible answers add up to one."""
    totals = dict.fromkeys(task_files.OF_CHOICES, 0.0)
    for answer in range(4):
        made = [question(context, choices, answer) for context, choices in drawn]
        for reader, score in task_files.accuracies(made).items():
            assert score["n"] == len(drawn)
            totals[reader] += score["value"]
    assert all(total == pytest.approx(1) for total in totals.values())


def test_counted_bytes_need_the_entropy_of_their_counts():
    (score,) = task_files.bits_of_texts([{"text": "aab"}, {"text": "b"}]).values()
    assert score == {"value": 1.0, "stderr": None, "n": 2}
    (score,) = task_files.bits_of_completions([{"completion": "abb"}]).values()
    assert score["value"] == pytest.approx(math.log2(3) - 2 / 3)
