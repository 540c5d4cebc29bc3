"""Markdown in which text of users and of data stays text: escaped words, cells, tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

SPECIAL = re.compile(r"([\\`*{}\[\]<>#|~$!&]|(?<![^\W_])_|_(?![^\W_]))")
"""Characters that Markdown, or the HTML and formulas inside of it, may give a meaning anywhere in a line.

An underscore within a word has none."""


def escaped(text: object) -> str:
    """Return text for one line of Markdown, in which no character has a meaning."""
    return SPECIAL.sub(r"\\\1", " ".join(str(text).split()))


def code(text: object) -> str:
    """Return text as inline code, in which a pipe also ends no cell of a table."""
    line = " ".join(str(text).split()).replace("|", "\\|")
    longest = max(map(len, re.findall("`+", line)), default=0)
    fence = "`" * (longest + 1)
    space = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{space}{line}{space}{fence}" if line else ""


def listed(names: Iterable[object]) -> str:
    """Return names as inline code, separated by commas."""
    return ", ".join(map(code, names))


def markdown_table(titles: Sequence[str], rows: Iterable[Sequence[object]], right: str = "") -> list[str]:
    """Return the lines of a table. Cells are Markdown in one line.

    `right`: a letter `r` for each column that is aligned to the right, any other for the rest.
    """
    marks = [("---:" if right[number : number + 1] == "r" else "---") for number in range(len(titles))]
    lines = [titles, marks, *(["" if cell is None else str(cell) for cell in row] for row in rows)]
    return ["", *("| " + " | ".join(cells) + " |" for cells in lines), ""]


def fenced(lines: Sequence[str], language: str) -> list[str]:
    """Return the lines of a block of code, which hold no fence themselves."""
    return ["", f"```{language}", *lines, "```", ""]
