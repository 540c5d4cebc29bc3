"""Questions of four choices: without the context each choice is right by chance."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.lib.scoring.tasks.choices import CHOICES, WIDEST_BIN, Candidate, balanced, draw

BIN = 16
candidates = st.lists(
    st.builds(Candidate, st.text("ab\u00e9 ", max_size=20), st.sampled_from("pqrst"), st.integers()), max_size=60
)


def lines(count):
    """Return different candidates of 20 to 59 characters, each in its own group."""
    return [Candidate(f"{number:04d}" + "x" * (16 + number % 40), str(number), number) for number in range(count)]


@settings(deadline=None)
@given(candidates, st.integers(0, 80), st.randoms(use_true_random=False))
def test_choices_differ_and_come_from_one_bin_and_other_groups(made, count, rng):
    drawn = draw(made, count, rng, BIN)
    assert len(drawn) <= min(count, len(made))
    for right, wrong in drawn:
        texts = [right.text, *wrong]
        assert len({text.strip() for text in texts}) == CHOICES
        assert all(any(other.text == text and other.group != right.group for other in made) for text in wrong)
        sizes = [len(text.encode()) for text in texts]
        assert max(sizes) <= WIDEST_BIN * min(sizes)


def test_no_candidate_is_drawn_twice():
    drawn = [right.origin for right, _ in draw(lines(400), 1000, random.Random(0), BIN)]
    assert len(set(drawn)) == len(drawn) > 350


def test_wrong_choice_is_the_right_one_of_another_question():
    made = lines(400)
    drawn = draw(made, 1000, random.Random(0), BIN)
    right_texts = {right.text for right, _ in drawn}
    assert {text for _, wrong in drawn for text in wrong} <= right_texts


@pytest.mark.parametrize("preference", [len, lambda text: int(text[:4]), lambda text: -int(text[:4])])
def test_preference_for_some_texts_is_right_by_chance(preference):
    hits, drawn = 0.0, draw(lines(3000), 3000, random.Random(0), BIN)
    for right, wrong in drawn:
        best = max(map(preference, [right.text, *wrong]))
        liked = [text for text in [right.text, *wrong] if preference(text) == best]
        hits += (right.text in liked) / len(liked)
    assert abs(hits / len(drawn) - 0.25) < 3 * (0.25 * 0.75 / len(drawn)) ** 0.5


def test_answers_are_balanced_and_point_at_the_right_choice():
    questions = [{"id": number, "right": f"{number}", "wrong": ["a", "b", "c"]} for number in range(42)]
    made = balanced(questions, random.Random(0))
    assert sorted(question["id"] for question in made) == list(range(42))
    answers = [question["answer"] for question in made]
    assert sorted(answers.count(position) for position in range(4)) == [10, 10, 11, 11]
    for question in made:
        assert question["choices"][question["answer"]] == str(question["id"])
        assert sorted(question["choices"]) == sorted([str(question["id"]), "a", "b", "c"])
        assert not question.keys() & {"right", "wrong"}
