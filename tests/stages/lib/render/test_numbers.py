"""Numbers as text, and tables as text and Markdown."""

import pytest

from stages.lib import space
from stages.lib.render import numbers, table
from stages.lib.render.table import Cell, Table


def test_a_score_has_its_standard_error_if_that_is_known():
    assert numbers.score(0.45, 0.03) == "0.450 +- 0.030"
    assert (numbers.score(0.45), numbers.score(None, 0.03)) == ("0.450", "-")


TEXTS = {
    numbers.short: {0: "0", 999: "999", 999.6: "1.0k", 12345: "12.3k", 999_999: "1.0M", 4.5e9: "4.5B", 1e15: "1000.0T"},
    numbers.three_digits: {0: "0", 0.0004: "less than 0.001", 3.14159: "3.14", 1234.5: "1,234"},
    numbers.clock: {7.4: "0:07", 187: "3:07", 7387.2: "2:03:07", 359_998: "99:59:58", 359_999.6: "4d 4h"},
    numbers.duration: {1.25: "1.2 s", 60: "1 min 0 s", 12_000: "3 h 20 min", 90_000 * 100: "104 d 4 h"},
    space.amount: {0: "0 bytes", 999: "999 bytes", 1_000: "1.0 kB", 12_345_678_901: "12.3 GB"},
}


@pytest.mark.parametrize("form", TEXTS, ids=lambda form: form.__name__)
def test_numbers_are_short_and_have_their_unit(form):
    assert {value: form(value) for value in TEXTS[form]} == TEXTS[form]


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
