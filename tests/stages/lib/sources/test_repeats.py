"""Text that occurs in another place too."""

from stages.lib.sources.kinds.python_kinds import repeated, words_of

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
