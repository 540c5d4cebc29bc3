"""Numbers as text, and tables as text and Markdown."""

import pytest

from stages.lib.render import numbers, table
from stages.lib.render.table import Cell, Table


def test_a_score_has_its_standard_error_if_that_is_known():
    assert numbers.score(0.45, 0.03) == "0.450 +- 0.030"
    assert (numbers.score(0.45), numbers.score(None, 0.03)) == ("0.450", "-")


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (999, "999"), (999.6, "1.0k"), (12345, "12.3k"), (999_999, "1.0M"), (4.5e9, "4.5B"), (1e15, "1000.0T")],
)
def test_a_number_is_short(value, text):
    assert numbers.short(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (0.0004, "less than 0.001"), (3.14159, "3.14"), (1234.5, "1,234")]
)
def test_three_digits_have_no_exponent(value, text):
    assert numbers.three_digits(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(7.4, "0:07"), (187, "3:07"), (7387.2, "2:03:07"), (359_998, "99:59:58"), (359_999.6, "4d 4h"),
     (86400 * 400, "400d 0h")],
)  # fmt: skip
def test_a_clock_is_minutes_hours_or_days_in_eight_characters(seconds, text):
    assert numbers.clock(seconds) == text and len(text) <= 8


@pytest.mark.parametrize(
    ("seconds", "text"), [(1.25, "1.2 s"), (60, "1 min 0 s"), (12_000, "3 h 20 min"), (90_000 * 100, "104 d 4 h")]
)
def test_a_duration_has_its_two_largest_units(seconds, text):
    assert numbers.duration(seconds) == text


def test_a_table_is_aligned_text_or_markdown_in_which_texts_stay_texts():
    rows = [["a|b", table.score(0.5, 0.25, strong=True)], [Cell(text="c_", code=True), "-"]]
    made = Table(titles=["run", "acc"], rows=rows, numeric=range(1, 2))
    assert made.text() == ["  run             acc", "  a|b  0.500 +- 0.250*", "  c_                -"]
    assert made.markdown()[1:-1] == [
        "| run | acc |",
        "| --- | ---: |",
        "| a\\|b | **0.500** \u00b1 0.250 |",
        "| `c_` | - |",
    ]
