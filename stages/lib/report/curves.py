"""Curves of the runs, from their run directories, and the problems that their events tell of.

One pass over metrics.jsonl gives everything. Curves are thinned run by run: 200 runs of 100,000 steps fit in memory.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stages.lib.log import logger
from stages.lib.report.figures import POINTS, Point, thinned
from stages.lib.report.health import Health, Spikes, health_of
from stages.lib.report.results import Results
from stages.lib.run_directory import history, journal
from stages.lib.run_directory.events import read_events

FIGURES = ("learning_rate", "grad_norm", "tokens_per_second", "mfu")
"""The figures of a step that have a curve beside the loss."""


@dataclass(frozen=True, kw_only=True)
class Curves:
    """A run against tokens: the loss of training and of each source's validation text, and FIGURES.

    `validation`: {source: a curve per text on which its loss was measured, in the order of their first points}: points
    of different text are not joined. Lines of more points than a figure shows are thinned: a point is the mean of
    several steps, of grad_norm the largest value. `drawn`: {source: tokens that were drawn from it}, `epochs`: {source:
    epochs} at the last step. `seconds`: of all steps, those that were repeated too; `peak_bytes`: memory of the first
    rank; `world_size`: the newest.
    """

    train: list[Point]
    validation: dict[str, list[list[Point]]]
    figures: dict[str, list[Point]] = field(default_factory=dict)
    drawn: dict[str, float] = field(default_factory=dict)
    epochs: dict[str, float] = field(default_factory=dict)
    health: Health = field(default_factory=Health)
    steps_per_point: int = 1
    seconds: float | None = None
    peak_bytes: float | None = None
    world_size: int | None = None


def tokens_before(results: Results) -> dict[str, int]:
    """Return how many tokens each run's initial model was trained on: figures show a tuned run from there."""
    return {run_name: _tokens_before(results, run_name) for run_name in results.runs()}


def _tokens_before(results: Results, run_name: str) -> int:
    origin = results.tuned_from(run_name)
    return results.models[origin].identity["tokens"] + _tokens_before(results, origin[0]) if origin else 0


def run_directories(results: Results) -> dict[str, Path]:
    """Return the run directory of each run's newest model."""
    newest = {run_name: made for (run_name, _), made in results.models.items()}  # sorted by step: the last one stays
    return {name: made.directory / made.record["run_directory"] for name, made in newest.items()}


def logs_of(results: Results) -> list[Path]:
    """Return the logs that curves and problems are read from."""
    return [path for directory in run_directories(results).values() for path in history.logs(directory)]


def read_curves(results: Results, before: Mapping[str, int]) -> dict[str, Curves]:
    """Return the curves of each run's newest model.

    `before`: tokens that are added to each run's points. Of a step that was taken twice the later entry counts; a
    skipped step changed no weight, and has no point. A run on preferences has no loss: its loss is not that of tokens.
    """
    on_preferences = {name for (name, _), made in results.models.items() if "dpo" in made.identity["recipe"]}
    return {
        name: _read(directory, name, before[name], name not in on_preferences)
        for name, directory in run_directories(results).items()
    }


def _read(directory: Path, run_name: str, before: int, with_loss: bool) -> Curves:
    steps: dict[int, tuple[float | None, ...]] = {}  # tokens, loss, FIGURES
    validation: defaultdict[str, dict[int, tuple[Any, Point]]] = defaultdict(dict)  # with the digest of the text
    events, spikes, last, seconds = read_events(directory), Spikes(), {}, 0.0
    for entry in history.entries(directory, events):
        step, tokens = entry["step"], entry["tokens"] + before
        seconds += _number(entry.get("seconds")) or 0.0
        if "validation" in entry:
            for source, score in entry["validation"].items():
                validation[source][step] = (score.get("text"), (tokens, score["loss"], None))
        elif history.is_good(entry):
            steps[step] = (tokens, entry["loss"], *(_number(entry.get(name)) for name in FIGURES))
            spikes.add(step, entry["loss"])
            last = entry
        else:
            steps.pop(step, None)
    if not steps:
        logger.warning("missing: %s, so the curves of run %s are not drawn", directory / "metrics.jsonl", run_name)
    rows = [steps[step] for step in sorted(steps)]
    return Curves(
        train=_curve(rows, 1) if with_loss else [],
        validation={source: _by_text(points) for source, points in validation.items()} if with_loss else {},
        figures={name: _curve(rows, 2 + at, name == "grad_norm") for at, name in enumerate(FIGURES)},
        drawn=_by_source(last.get("source_tokens")),
        epochs=_by_source(last.get("source_epochs")),
        steps_per_point=max(1, -(-len(rows) // POINTS)),
        seconds=seconds or None,
        peak_bytes=memory * 1e6 if (memory := _number(last.get("memory_mb"))) else None,
        world_size=next((event["world_size"] for event in reversed(events) if "world_size" in event), None),
        health=health_of(events, {step: row[0] for step, row in steps.items()}, spikes.steps),
    )


def _number(value: Any) -> float | None:
    return value if journal.is_number(value) else None  # "n/a": the MFU of an unknown device


def _curve(rows: list[tuple[float | None, ...]], column: int, largest: bool = False) -> list[Point]:
    points = [(row[0], row[column], None) for row in rows if row[0] is not None and row[column] is not None]
    return thinned(points, largest=largest)  # type: ignore[arg-type]


def _by_source(data: Any) -> dict[str, float]:
    """Return the numbers of a line by source; {} for a damaged line."""
    return data if isinstance(data, dict) and all(map(journal.is_number, data.values())) else {}


def _by_text(points: Mapping[int, tuple[Any, Point]]) -> list[list[Point]]:
    curves: dict[Any, list[Point]] = {}
    for step in sorted(points):
        text, point = points[step]
        curves.setdefault(text, []).append(point)
    return [*curves.values()]


def training_problems(results: Results) -> list[str]:
    """Return a sentence on each run that skipped steps, rolled back or hung."""
    sentences = []
    for run_name, directory in run_directories(results).items():
        if found := history.troubles(read_events(directory)):
            path = Path(os.path.normpath(directory / "events.jsonl"))
            sentences.append(f"run {run_name}: {', '.join(found)}; see {path}")
    return sentences
