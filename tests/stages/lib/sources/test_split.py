"""The split: by key alone; and the words that stand in two places."""

from hypothesis import given, settings
from hypothesis import strategies as st

from stages.lib.sources.entries import TRAIN, VALIDATION, split_of
from stages.lib.sources.kinds.python_kinds import repeated, words_of


@settings(max_examples=100, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"])), st.floats(0, 0.9), st.floats(0, 0.9))
def test_a_larger_fraction_only_adds_to_the_validation_split(key, one, other):
    if split_of(key, min(one, other)) == VALIDATION:
        assert split_of(key, max(one, other)) == VALIDATION
    assert split_of(key, 0) == TRAIN


def test_the_validation_share_is_about_the_fraction():
    validation = sum(split_of(str(number), 0.15) == VALIDATION for number in range(10000))
    assert 1350 < validation < 1650


def test_the_split_of_a_key_never_changes():
    keys = [f"json.{name}" for name in ("decoder", "encoder", "scanner", "tool", "", "x", "y", "z")]
    drawn = "".join(split_of(key, 0.5)[0] for key in keys)
    assert drawn == "vvvtttvv", "newer runs would train on the validation text of older ones"


def test_words_are_repeated_if_they_are_those_of_two_places_or_stand_within_another():
    assert words_of("Close\n    the file.") == ("Close", "the", "file")
    one, two = words_of("the one and only line"), words_of("a line of two")
    for place, text, expected in (
        ("b", "# see: the one and only line, here", {one, two}),
        ("a", "the one and only line; the one and only line", {two}),  # its own place
        ("b", "the one and only", {two}),  # a beginning alone
    ):
        assert repeated({one: {"a"}, two: {"a", "b"}}, [(place, words_of(text))], opening=3) == expected
