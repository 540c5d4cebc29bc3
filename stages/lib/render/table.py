"""A table, shown as lines of text, as Markdown, and by the template of pages as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from stages.lib.render import markdown, numbers

NARROW = 64  # letters of a line of a table that is as wide as a chart
BEST = "*"
"""The mark after a strong cell in text."""


@dataclass(frozen=True, kw_only=True)
class Interval:
    """The bounds of a difference, drawn on a scale from -edge, worse, to edge, better. `filled`: it is significant."""

    low: float
    value: float
    high: float
    edge: float
    filled: bool
    dashed: bool


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A cell of a table. `strong`: the best of its column; `note`: smaller text after it; `title`: shown on hover.

    `value`: what a column is sorted by, and a saved table has; default: the text. `interval`: drawn after the text.
    """

    text: str
    note: str = ""
    title: str = ""
    strong: bool = False
    code: bool = False
    value: str | float | None = None
    interval: Interval | None = None

    def __str__(self) -> str:
        """Return the cell as text."""
        return f"{self.text} {self.note}".replace("\u00b1", "+-") if self.note else self.text

    @property
    def as_markdown(self) -> str:
        """The cell as Markdown."""
        text = markdown.code(self.text) if self.code else markdown.escaped(self.text)
        return " ".join(part for part in (f"**{text}**" if self.strong else text, markdown.escaped(self.note)) if part)


def score(value: float | None, stderr: float | None = None, name: str = "", strong: bool = False) -> Cell:
    """Return a score with its standard error. `name`: what it is of, where the column does not say it."""
    text, _, error = numbers.score(value, stderr, "\u00b1").partition(" ")
    return Cell(text=text, note=" ".join(part for part in (error, name) if part), strong=strong)


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table; its caption stands beside it. `numeric`: columns that are right-aligned, from -1 for the last.

    `saved_as`: the name of a CSV file under which readers can save it; such a table can be sorted and filtered too.
    """

    kind: ClassVar[str] = "table"
    titles: Sequence[str]
    rows: Sequence[Sequence[str | Cell]]
    caption: str = ""
    numeric: range = range(0)
    saved_as: str = ""

    def is_numeric(self, column: int) -> bool:
        """Return whether a column, from 0, is right-aligned."""
        return column in self.numeric or column - len(self.titles) in self.numeric

    @property
    def is_narrow(self) -> bool:
        """True if the table needs no more room than a chart, and may stand beside another block."""
        columns = zip(*([max(title.split(), key=len, default="") for title in self.titles], *self.rows), strict=True)
        longest = (max(len(cell if isinstance(cell, str) else cell.text) for cell in column) for column in columns)
        return sum(letters + 2 for letters in longest) <= NARROW

    def text(self, indent: str = "  ") -> list[str]:
        """Return lines of text: columns two spaces apart, a star after strong cells."""
        columns = [self._column(number) for number in range(len(self.titles))]
        return [indent + "  ".join(line).rstrip() for line in zip(*columns, strict=True)]

    def _column(self, number: int) -> list[str]:
        """Return the cells of a column, its title first, of one width."""
        cells = [self.titles[number], *(row[number] for row in self.rows)]
        strong = [isinstance(cell, Cell) and cell.strong for cell in cells]
        texts = [f"{cell}{(BEST if best else ' ') * any(strong)}" for cell, best in zip(cells, strong, strict=True)]
        width = max(map(len, texts))
        return [text.rjust(width) if self.is_numeric(number) else text.ljust(width) for text in texts]

    def markdown(self) -> list[str]:
        """Return lines of Markdown, in which texts stay texts."""
        rows = ([cell.as_markdown if isinstance(cell, Cell) else markdown.escaped(cell) for cell in row]
                for row in self.rows)  # fmt: skip
        right = "".join("r" if self.is_numeric(number) else " " for number in range(len(self.titles)))
        return markdown.markdown_table([markdown.escaped(title) for title in self.titles], rows, right)
