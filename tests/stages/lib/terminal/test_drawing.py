"""Bars, sparklines, and numbers and texts of a given width."""

import pytest

from stages.lib.terminal.drawing import (
    ASCII,
    BLOCKS,
    bar,
    fit,
    glyphs_for,
    short_duration,
    short_number,
    sparkline,
)


@pytest.mark.parametrize(("share", "text"), [(0, "----"), (0.49, "#---"), (0.5, "##--"), (1, "####"), (7, "####")])
def test_a_bar_is_full_only_at_the_end(share, text):
    assert bar(share, 4, ASCII) == text


def test_a_sparkline_goes_from_the_lowest_to_the_highest_level():
    assert sparkline([8, 7, 6, 5, 4, 3, 2, 1], 8, BLOCKS) == BLOCKS.levels[::-1]
    assert sparkline([4, 4, 0, 0], 2, ASCII) == "#_", "neighbours are averaged"
    assert sparkline([1.0, 1.0], 8, ASCII) == "__"
    assert sparkline([], 8, ASCII) == ""


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (999, "999"), (999.6, "1.0k"), (12345, "12.3k"), (999_999, "1.0M"), (4.5e9, "4.5G"), (1e15, "1000.0T")],
)
def test_a_number_is_short(value, text):
    assert short_number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(7, "0:07"), (359_998, "99:59:58"), (359_999.6, "4d 4h"), (86400 * 400, "400d 0h")]
)
def test_a_long_duration_is_in_days(seconds, text):
    assert short_duration(seconds) == text
    assert len(text) <= 8


def test_a_text_is_one_line_of_the_given_width():
    assert fit("abc", 3, ASCII) == "abc"
    assert fit("abcd", 3, ASCII) == "ab~"
    assert fit("a\nb\x1b[2J", 20, ASCII) == "a b [2J"
    assert fit("abc", 0, ASCII) == ""


@pytest.mark.parametrize(("encoding", "glyphs"), [("UTF-8", BLOCKS), ("latin-1", ASCII), (None, ASCII), ("x", ASCII)])
def test_an_output_that_has_no_block_characters_gets_ascii(encoding, glyphs):
    assert glyphs_for(encoding) is glyphs
