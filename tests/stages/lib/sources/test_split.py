"""The split: by key alone."""

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


OWNERS = {words_of("the one and only line"): {"a"}, words_of("a line of two"): {"a", "b"}}


def test_line_ends_and_punctuation_are_no_words():
    assert words_of("Close\n    the file.") == ("Close", "the", "file")


def test_what_belongs_to_two_places_is_repeated():
    assert repeated(OWNERS, [], opening=3) == {words_of("a line of two")}


def test_what_stands_in_the_middle_of_another_place_is_repeated():
    elsewhere = ("b", words_of("# see: the one and only line, here"))
    assert repeated(OWNERS, [elsewhere], opening=3) == set(OWNERS)


def test_what_stands_again_in_its_own_place_is_not():
    again = ("a", words_of("the one and only line; the one and only line"))
    assert words_of("the one and only line") not in repeated(OWNERS, [again], opening=3)


def test_a_beginning_alone_is_no_repetition():
    cut = ("b", words_of("the one and only"))
    assert words_of("the one and only line") not in repeated(OWNERS, [cut], opening=3)
