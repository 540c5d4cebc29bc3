"""Tables of runs as data, one per stage that trained them: the keys in which recipes differ, and the last scores."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, NamedTuple

from stages.lib.manifest import AVERAGE, ModelManifest, trained_by
from stages.lib.results.manifests import Results, name_of_model
from stages.lib.results.scores import ScoreRow, columns_of, lower_is_better

DIGITS = 12  # of a corpus' digest that are shown if its name is not known

Recipe = dict[str, Any]
"""{dotted key: value}; a list is JSON"""


def recipes_of(results: Results, expected: Mapping[str, Any]) -> dict[str, tuple[str, Recipe]]:
    """Return {run: (stage of its training, recipe)} of each run's newest model.

    Beside the identity of its recipe it has `steps`, `corpus` and `initial`. `expected`: the data of --expect, whose
    `defaults` fill the keys that manifests leave out: without them a key that is missing has no value.
    """
    defaults, runs = expected.get("defaults", {}), expected.get("runs", {})
    return {
        name: (stage, defaults.get(stage, {}) | _recipe(model, runs.get(name, {})))
        for name, model in results.last_models().items()
        for stage in [trained_by(model)]
    }


def _recipe(model: ModelManifest, run: Mapping[str, Any]) -> Recipe:
    steps = model.record.get("horizon", {}).get("steps")
    if steps is None or model.stage == AVERAGE:  # the training may continue after the last milestone of a mean
        steps = model.identity["step"]
    corpus = run.get("corpus") or model.identity.get("corpus", "")[:DIGITS]
    more = {"steps": steps, "corpus": corpus, "initial": name_of_model(model.record.get("initial"))}
    return flat(model.identity["recipe"]) | more


def flat(data: Mapping[str, Any], prefix: str = "") -> Recipe:
    """Return nested mappings as {dotted key: value}, with lists, and a group without keys, as JSON."""
    flattened: Recipe = {}
    for key, value in data.items():
        if value and isinstance(value, Mapping):
            flattened |= flat(value, f"{prefix}{key}.")
        else:
            flattened[f"{prefix}{key}"] = json.dumps(value) if isinstance(value, (list, Mapping)) else value
    return flattened


def differing(recipes: Iterable[Recipe]) -> list[str]:
    """Return the keys in which recipes differ, sorted; `seed` last.

    What a run takes from its initial model, `initial.KEY`, is compared only with other runs that have one.
    """
    several = list(recipes)
    keys = []
    for key in sorted({key for recipe in several for key in recipe}, key=lambda key: (key == "seed", key)):
        having = [recipe for recipe in several if key in recipe or not key.startswith("initial.")]
        if len({recipe.get(key) for recipe in having}) > 1:
            keys.append(key)
    return keys


def value_text(value: Any, widest: int | None = None) -> str:
    """Return a value of a flat recipe as text; a longer one than `widest` is cut."""
    if value is None:
        return "-"
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text if widest is None or len(text) <= widest else f"{text[: widest - 3]}..."


def labels_of(keys: Sequence[str]) -> dict[str, str]:
    """Return {key: its shortest end that no other key has}."""
    return {key: _label(key, [other for other in keys if other != key]) for key in keys}


def _label(key: str, others: Sequence[str]) -> str:
    parts = key.split(".")
    ends = [".".join(parts[-length:]) for length in range(1, len(parts) + 1)]
    return next((end for end in ends if not any(f".{other}".endswith(f".{end}") for other in others)), key)


SEED = "seed"


@dataclass(frozen=True, kw_only=True)
class Score:
    """A score: of one run with its standard error, or the mean over runs with their standard deviation."""

    value: float
    error: float | None
    """Standard error, or deviation over seeds; None if it is not known."""

    documents_error: float | None = None
    """Of a mean over seeds: the mean standard error over documents of its runs; None if one has none."""

    is_best: bool = False
    """True for the best of its column."""


class Column(NamedTuple):
    """A task by one of its metrics."""

    task: str
    metric: str

    @property
    def lower_is_better(self) -> bool:
        """True for a metric whose lower values are better."""
        return lower_is_better(self.metric)


@dataclass(frozen=True, kw_only=True)
class Row:
    """A run, or several that differ in their seed only, with the scores of their last scored milestone."""

    runs: tuple[str, ...]
    values: Mapping[str, Any]
    """{key of the table: value}; None for a key that the run does not have."""

    scores: Mapping[Column, Score]
    """A run without the score lacks the column."""


@dataclass(frozen=True, kw_only=True)
class RunTable:
    """Runs that one stage trained: the keys in which their recipes differ, and their scores."""

    stage: str
    keys: tuple[str, ...]
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    """One per run, sorted by name."""

    means: tuple[Row, ...]
    """Means over the runs that differ in their seed only, without the key `seed`; () if there are no such runs."""

    def ranked(self, rows: Sequence[Row]) -> list[Row]:
        """Return rows of this table with the best score of the first column first; those without it last."""
        if not self.columns:
            return list(rows)
        first = self.columns[0]
        sign = 1 if first.lower_is_better else -1
        infinity = float("inf")
        return sorted(rows, key=lambda row: sign * row.scores[first].value if first in row.scores else infinity)


def run_tables(
    results: Results, rows: Sequence[ScoreRow], expected: Mapping[str, Any], runs: Collection[str] | None = None
) -> list[RunTable]:
    """Return a table for each stage that trained at least two runs, pretrain before finetune.

    `rows`: the scores, sorted by run and step. `expected`: the data of --expect. `runs`: the only runs that count, as
    those of a sweep; default: all.
    """
    recipes = recipes_of(results, expected)
    last = _last_scores(rows)
    by_stage: dict[str, dict[str, Recipe]] = {}
    for name, (stage_name, recipe) in recipes.items():
        if runs is None or name in runs:
            by_stage.setdefault(stage_name, {})[name] = recipe
    return [_table(name, by_stage[name], last) for name in sorted(by_stage, reverse=True) if len(by_stage[name]) > 1]


def _last_scores(rows: Sequence[ScoreRow]) -> dict[str, list[ScoreRow]]:
    """Return {run: scores of its last scored milestone}."""
    steps = {row["run"]: row["step"] for row in rows}  # sorted by step: the last one stays
    last: dict[str, list[ScoreRow]] = {name: [] for name in steps}
    for row in rows:
        if row["step"] == steps[row["run"]] and row["value"] is not None:
            last[row["run"]].append(row)
    return last


def _table(stage_name: str, recipes: Mapping[str, Recipe], last: Mapping[str, Sequence[ScoreRow]]) -> RunTable:
    keys = tuple(differing(recipes.values()))
    columns = tuple(map(Column._make, columns_of([row for name in recipes for row in last.get(name, ())])))
    rows = [_row(name, recipe, keys, columns, last.get(name, ())) for name, recipe in sorted(recipes.items())]
    return RunTable(
        stage=stage_name,
        keys=keys,
        columns=columns,
        rows=_with_best(rows, columns),
        means=_with_best(_means(rows, keys), columns),
    )


def _row(name: str, recipe: Recipe, keys: Sequence[str], columns: Sequence[Column], scores: Sequence[ScoreRow]) -> Row:
    by_metric = {Column(row["task"], row["metric"]): Score(value=row["value"], error=row["stderr"]) for row in scores}
    return Row(
        runs=(name,),
        values={key: recipe.get(key) for key in keys},
        scores={column: by_metric[column] for column in columns if column in by_metric},
    )


def _means(rows: Sequence[Row], keys: Sequence[str]) -> list[Row]:
    """Return the mean of each group of rows that differ in their seed only; [] if no group has two."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    seen = set()  # a run that repeats another counts once
    for row in rows:
        values = tuple(row.values[key] for key in keys)
        if values not in seen:
            groups.setdefault(tuple(row.values[key] for key in keys if key != SEED), []).append(row)
        seen.add(values)
    if SEED not in keys or all(len(group) < 2 for group in groups.values()):
        return []
    return [_mean(group) for group in groups.values()]


def _mean(group: Sequence[Row]) -> Row:
    """Return the mean of rows; a score that a row lacks has none."""
    columns = [column for column in group[0].scores if all(column in row.scores for row in group)]
    scores = {}
    for column in columns:
        of_runs = [row.scores[column] for row in group]
        values = [score.value for score in of_runs]
        errors = [score.error for score in of_runs if score.error is not None]
        scores[column] = Score(
            value=fmean(values),
            error=stdev(values) if len(values) > 1 else None,
            documents_error=fmean(errors) if len(errors) == len(values) else None,
        )
    return dataclasses.replace(
        group[0],
        runs=tuple(name for row in group for name in row.runs),
        values={key: value for key, value in group[0].values.items() if key != SEED},
        scores=scores,
    )


def _with_best(rows: Sequence[Row], columns: Sequence[Column]) -> tuple[Row, ...]:
    """Return rows whose best score of each column is marked; nothing is marked if all are equal."""
    best: dict[Column, float] = {}
    for column in columns:
        values = [row.scores[column].value for row in rows if column in row.scores]
        if len(set(values)) > 1:
            best[column] = min(values) if column.lower_is_better else max(values)
    return tuple(
        dataclasses.replace(
            row,
            scores={
                column: dataclasses.replace(score, is_best=score.value == best.get(column))
                for column, score in row.scores.items()
            },
        )
        for row in rows
    )


@dataclass(frozen=True, kw_only=True)
class HeatMap:
    """The scores of a column over two keys."""

    x_key: str
    y_key: str
    x_values: tuple[Any, ...]
    y_values: tuple[Any, ...]
    column: Column
    scores: tuple[tuple[Score | None, ...], ...]
    """[y][x]; None without a run, or without its score."""


def heat_map(table: RunTable, column: Column) -> HeatMap | None:
    """Return the scores of a column of a table whose runs differ in exactly two keys beside the seed; else None."""
    keys = [key for key in table.keys if key != SEED]
    rows = table.means or table.rows
    cells = {tuple(row.values[key] for key in keys): row.scores.get(column) for row in rows}
    if len(keys) != 2 or len(cells) < len(rows):  # the same place twice: no means, and other seeds
        return None
    y_values, x_values = (_sorted({place[axis] for place in cells}) for axis in (0, 1))
    return HeatMap(
        y_key=keys[0],
        x_key=keys[1],
        x_values=x_values,
        y_values=y_values,
        column=column,
        scores=tuple(tuple(cells.get((y, x)) for x in x_values) for y in y_values),
    )


def _sorted(values: Collection[Any]) -> tuple[Any, ...]:
    """Return values in order, numbers before text before None."""
    order = {int: 0, float: 0, bool: 0, str: 1}
    return tuple(sorted(values, key=lambda value: (order.get(type(value), 2), value if value is not None else 0)))
