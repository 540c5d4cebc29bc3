"""The table of an ablation: Markdown for people, CSV and JSON for programs."""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stages.lib import files
from stages.lib.ablation.grid import Cell, shown, words_of

MEASURED, OUT_OF_MEMORY, REFUSED = "measured", "out of memory", "refused"
FIGURES = ("gradient_accumulation_steps", "step_seconds", "tokens_per_second", "mfu", "peak_memory_mb")
HEADS = ("accumulation", "step (s)", "tokens/s", "MFU", "peak memory (MB)")
FORMATS = ("{:d}", "{:.3f}", "{:,.0f}", "{:.1%}", "{:,d}")


@dataclass(frozen=True)
class Outcome:
    """Outcome of a cell. `result`: MEASURED, OUT_OF_MEMORY or REFUSED; `reason`: the sentence unless measured."""

    cell: Cell
    result: str
    figures: dict[str, Any]
    reason: str | None = None


def markdown(outcomes: Sequence[Outcome], title: str) -> str:
    """Return a table with a line per cell, and below it the sentences of the cells that were not measured."""
    keys = list(outcomes[0].cell)
    rows = [[*keys, *HEADS, "result"]]
    for outcome in outcomes:
        values = [shown(value) for value in outcome.cell.values()]
        rows.append([*values, *(_figure(outcome, number) for number in range(len(FIGURES))), outcome.result])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [title, "", _line(rows[0], widths, len(keys)), _rule(widths, len(keys))]
    lines += [_line(row, widths, len(keys)) for row in rows[1:]]
    reasons = [f"- {words_of(outcome.cell)}: {outcome.reason}" for outcome in outcomes if outcome.reason]
    return "\n".join([*lines, *([""] if reasons else []), *reasons]) + "\n"


def _figure(outcome: Outcome, number: int) -> str:
    value = outcome.figures.get(FIGURES[number], "-")
    return value if isinstance(value, str) else FORMATS[number].format(value)


def _line(texts: Sequence[str], widths: Sequence[int], num_keys: int) -> str:
    """Return a line; the columns of figures are aligned at the right."""
    sides = ["<"] * num_keys + [">"] * len(HEADS) + ["<"]
    cells = [f"{text:{side}{width}}" for text, side, width in zip(texts, sides, widths, strict=True)]
    return f"| {' | '.join(cells)} |"


def _rule(widths: Sequence[int], num_keys: int) -> str:
    right = range(num_keys, num_keys + len(HEADS))
    cells = ["-" * (width - 1) + (":" if column in right else "-") for column, width in enumerate(widths)]
    return f"| {' | '.join(cells)} |"


def as_json(outcomes: Sequence[Outcome], facts: dict[str, Any]) -> str:
    """Return the facts that all cells share, and the cells."""
    return json.dumps(facts | {"cells": [dataclasses.asdict(outcome) for outcome in outcomes]}, indent=2) + "\n"


def as_csv(outcomes: Sequence[Outcome], facts: dict[str, Any]) -> str:
    """Return a line per cell; the facts that all share are the first columns."""
    text = io.StringIO()
    columns = [*facts, *outcomes[0].cell, *FIGURES, "result", "reason"]
    endings = [{"result": outcome.result, "reason": outcome.reason} for outcome in outcomes]
    rows = [facts | outcome.cell | outcome.figures | ending for outcome, ending in zip(outcomes, endings, strict=True)]
    files.write_csv(text, columns, rows)
    return text.getvalue()
