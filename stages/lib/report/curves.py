"""Loss curves of the runs, from their run directories, and the problems that their events tell of."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stages.lib.log import logger
from stages.lib.report.figures import Point
from stages.lib.report.results import Results
from stages.lib.run_directory import history
from stages.lib.run_directory.events import read_events


@dataclass(frozen=True)
class Curves:
    """The loss of a run against tokens: of training, and of each source's validation text."""

    train: list[Point]
    validation: dict[str, list[Point]]


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


def read_curves(results: Results, before: Mapping[str, int]) -> dict[str, Curves]:
    """Return the curves of each run's newest model.

    `before`: tokens that are added to each run's points. Of a step that was taken twice the later entry counts; a
    skipped step changed no weight, and has no point. A run on preferences has no curve: its loss is not that of tokens.
    """
    on_preferences = {name for (name, _), made in results.models.items() if "dpo" in made.identity["recipe"]}
    return {
        name: _read(directory, name, before[name])
        for name, directory in run_directories(results).items()
        if name not in on_preferences
    }


def _read(directory: Path, run_name: str, before: int) -> Curves:
    train: dict[int, Point] = {}
    validation: defaultdict[str, dict[int, Point]] = defaultdict(dict)
    for entry in history.entries(directory, read_events(directory)):
        if "validation" in entry:
            for source, score in entry["validation"].items():
                validation[source][entry["step"]] = (entry["tokens"] + before, score["loss"], None)
        elif history.is_good(entry):
            train[entry["step"]] = (entry["tokens"] + before, entry["loss"], None)
        else:
            train.pop(entry["step"], None)
    if not train:
        logger.warning("missing: %s, so the curves of run %s are not drawn", directory / "metrics.jsonl", run_name)
    return Curves(_in_order(train), {source: _in_order(points) for source, points in validation.items()})


def _in_order(points: Mapping[int, Point]) -> list[Point]:
    return [points[step] for step in sorted(points)]


def training_problems(results: Results) -> list[str]:
    """Return a sentence on each run that skipped steps, rolled back or hung."""
    sentences = []
    for run_name, directory in run_directories(results).items():
        if found := history.troubles(read_events(directory)):
            path = Path(os.path.normpath(directory / "events.jsonl"))
            sentences.append(f"run {run_name}: {', '.join(found)}; see {path}")
    return sentences
