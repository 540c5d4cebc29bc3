"""The blocks that a page is made of: tables, charts, bars, notes. The template shows each by its `kind`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from stages.lib.report.figures import Line

NARROW = 64  # letters of a line of a table that is as wide as a chart


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A cell of a table. `strong`: the best of its column; `note`: smaller text after it; `title`: shown on hover.

    `value`: what a column is sorted by, and a saved table has; default: the text.
    """

    text: str
    note: str = ""
    title: str = ""
    strong: bool = False
    code: bool = False
    value: str | float | None = None


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


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Lines that a reader can zoom, point at, and turn on and off, run by run.

    `levels`: {label: value} of horizontal lines. `marks`: {run: {what happened: tokens at which it did}}.
    `steps_per_point`: the most steps that a point of a line stands for. `log_tokens`: tokens on a logarithmic axis.
    """

    kind: ClassVar[str] = "chart"
    title: str
    y_label: str
    lines: Sequence[Line]
    caption: str
    levels: Mapping[str, float] = field(default_factory=dict)
    marks: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)
    steps_per_point: int = 1
    log_tokens: bool = False


@dataclass(frozen=True, kw_only=True)
class Bars:
    """Bars of shares, {part: share}, that add up to 1: one per (label, note), with the same parts in the same color.

    `colors`: {part: number of its color}.
    """

    kind: ClassVar[str] = "bars"
    parts: Sequence[str]
    rows: Sequence[tuple[str, str, Mapping[str, float]]]
    colors: Mapping[str, int]
    caption: str = ""


@dataclass(frozen=True, kw_only=True)
class HeatCell:
    """A cell of a heat map. `share`: from 0, the worst, to 1, the best."""

    text: str
    share: float


@dataclass(frozen=True, kw_only=True)
class HeatMap:
    """Values over two keys, colored from the worst to the best. A cell is None where there is no value."""

    kind: ClassVar[str] = "heat"
    caption: str
    x_label: str
    y_label: str
    x_values: Sequence[str]
    y_values: Sequence[str]
    rows: Sequence[Sequence[HeatCell | None]]


@dataclass(frozen=True, kw_only=True)
class Texts:
    """Texts that a model wrote: (label, prompt, continuation)."""

    kind: ClassVar[str] = "texts"
    rows: Sequence[tuple[str, str, str]]
    caption: str


@dataclass(frozen=True, kw_only=True)
class Notes:
    """Short paragraphs. `warning`: they need the reader's attention."""

    kind: ClassVar[str] = "notes"
    lines: Sequence[str]
    warning: bool = False


@dataclass(frozen=True, kw_only=True)
class Graph:
    """A drawing of jobs in columns, as `job_graph` lays it out."""

    kind: ClassVar[str] = "graph"
    svg: str
    caption: str


Block = Table | Chart | Bars | HeatMap | Texts | Notes | Graph


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of a page. `category`: the page of Snakemake's report that it stands on."""

    category: str
    title: str
    blocks: Sequence[Block]

    @property
    def anchor(self) -> str:
        """The name of the section in links."""
        return "".join(letter if letter.isalnum() else "-" for letter in self.title.lower())
