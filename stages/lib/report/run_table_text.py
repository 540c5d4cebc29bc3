"""Tables of runs as lines of text: the best first, a star after the best score of each column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stages.lib.report.run_table import Column, Row, RunTable, Score

KEYS = 6  # columns of keys that are shown
TASKS = 5
ROWS = 30
WIDEST = 28  # characters of a value; a longer one is cut
BEST = "*"
WORDS = {"pretrain": "pretrained", "finetune": "fine-tuned"}


def lines_of(table: RunTable, more: str) -> list[str]:
    """Return the lines of a table, and of its means over seeds before it. `more`: the file that has what is cut."""
    lines: list[str] = []
    kind = WORDS.get(table.stage, table.stage)
    if table.means:
        lines += _lines(table, table.means, f"Means over seeds of {len(table.rows)} {kind} runs (+- deviation)", more)
        lines.append("")
    return lines + _lines(table, table.rows, f"{len(table.rows)} {kind} runs (+- standard error)", more)


def _lines(table: RunTable, rows: Sequence[Row], title: str, more: str) -> list[str]:
    """Return the title, the head, a line per row, and what is not shown."""
    first = table.columns[0] if table.columns else None
    order = f", best {first.task} first, {BEST} the best of a column" if first else ""
    keys = [key for key in table.keys if key in rows[0].values][:KEYS]
    columns, shown = table.columns[:TASKS], table.ranked(rows)[:ROWS]
    labels = labels_of(keys)
    cells = [["run", *(labels[key] for key in keys), *(f"{column.task} " for column in columns)]]
    cells += [_cells(row, keys, columns) for row in shown]
    widths = [max(len(line[number]) for line in cells) for number in range(len(cells[0]))]
    lines = ["  " + "  ".join(_aligned(line, widths)).rstrip() for line in cells]
    return [f"{title}{order}:", *lines, *_not_shown(table, rows, keys, more)]


def _aligned(line: Sequence[str], widths: Sequence[int]) -> list[str]:
    """Return cells as wide as their column: the run's name to the left, the others to the right."""
    name, *others = line
    return [f"{name:<{widths[0]}}", *(f"{cell:>{width}}" for cell, width in zip(others, widths[1:], strict=True))]


def _cells(row: Row, keys: Sequence[str], columns: Sequence[Column]) -> list[str]:
    name = row.runs[0] if len(row.runs) == 1 else f"{len(row.runs)} runs: {row.runs[0]}, ..."
    scores = [row.scores.get(column.task) for column in columns]
    return [name, *(value_text(row.values[key]) for key in keys), *map(score_text, scores)]


def value_text(value: Any) -> str:
    """Return a value of a recipe in short."""
    if value is None:
        return "-"
    text = f"{value:g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= WIDEST else f"{text[: WIDEST - 3]}..."


def score_text(score: Score | None) -> str:
    """Return a score with its error, and a star or a space after it: so the digits of a column stay in line."""
    if score is None:
        return "- "
    error = "" if score.error is None else f" +- {score.error:.3f}"
    return f"{score.value:.3f}{error}{BEST if score.is_best else ' '}"


def labels_of(keys: Sequence[str]) -> dict[str, str]:
    """Return {key: its shortest end that no other key has}."""
    return {key: _label(key, [other for other in keys if other != key]) for key in keys}


def _label(key: str, others: Sequence[str]) -> str:
    parts = key.split(".")
    ends = [".".join(parts[-length:]) for length in range(1, len(parts) + 1)]
    return next((end for end in ends if not any(f".{other}".endswith(f".{end}") for other in others)), key)


def _not_shown(table: RunTable, rows: Sequence[Row], keys: Sequence[str], more: str) -> list[str]:
    """Return a line that names what is cut; [] if all is shown."""
    hidden = [key for key in table.keys if key not in keys and key in rows[0].values]
    parts = [f"{len(rows) - ROWS} runs"] * (len(rows) > ROWS)
    parts += [f"{len(table.columns) - TASKS} tasks"] * (len(table.columns) > TASKS)
    parts += [f"the keys {', '.join(hidden)}"] * bool(hidden)
    return [f"  {more} also has {', '.join(parts)}"] if parts else []
