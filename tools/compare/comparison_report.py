"""All that a comparison shows, before it is written as Markdown, CSV or HTML."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.compare import models, paired, recipes, score_curves, scores
from tools.compare.models import ComparedModel
from tools.compare.recipes import Table
from tools.compare.score_curves import CurvePoint
from tools.compare.scores import TaskDifference


@dataclass(frozen=True, kw_only=True)
class Pair:
    """The reference and one other model."""

    reference: ComparedModel
    other: ComparedModel
    rows: list[TaskDifference]
    notes: list[str]


@dataclass(frozen=True, kw_only=True)
class ComparisonReport:
    """The comparison of the first of `models`, the reference, with each other one."""

    models: list[ComparedModel]
    overview: Table
    recipe_differences: Table
    pairs: list[Pair]
    points: list[CurvePoint]

    @property
    def num_tests(self) -> int:
        """The number of p-values, for which they are corrected."""
        return sum(row.corrected_p is not None for pair in self.pairs for row in pair.rows)


def compare(directory: Path, texts: Sequence[str]) -> ComparisonReport:
    """Compare the models that `texts` name, RUN or RUN:STEP, below the results `directory`; the first is the reference.

    Raises UserError if one does not exist, or a manifest or log is damaged.
    """
    results, found = models.find(directory, texts)
    reference, *others = found
    pairs = []
    for other in others:
        rows, notes = scores.compare(reference, other)
        pairs.append(Pair(reference=reference, other=other, rows=rows, notes=notes))
    known = recipes.KnownData(directory)
    return ComparisonReport(
        models=found,
        overview=recipes.overview(found, known),
        recipe_differences=recipes.differences(found, known),
        pairs=_corrected(pairs),
        points=score_curves.points(results),
    )


def _corrected(pairs: Sequence[Pair]) -> list[Pair]:
    """Correct the p-values of all pairs together."""
    values = [row.difference.p for pair in pairs for row in pair.rows if row.difference is not None]
    corrected = iter(paired.holm([p for p in values if p is not None]))
    return [dataclasses.replace(pair, rows=[_with_p(row, corrected) for row in pair.rows]) for pair in pairs]


def _with_p(row: TaskDifference, corrected: Iterator[float]) -> TaskDifference:
    if row.difference is None or row.difference.p is None:
        return row
    return dataclasses.replace(row, corrected_p=next(corrected))
