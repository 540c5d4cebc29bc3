"""The training of each run by its logs, metrics.jsonl and events.jsonl: losses, data drawn, devices, health.

One pass over metrics.jsonl gives everything. Curves are thinned run by run: 200 runs of 100,000 steps fit in memory.
"""

from __future__ import annotations

import math
import os
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stages.lib.log import logger
from stages.lib.manifest import AVERAGE
from stages.lib.render.chart import POINTS, Point, thinned
from stages.lib.results.manifests import Results
from stages.lib.run_directory import history, journal
from stages.lib.run_directory.events import read_events

FIGURES = ("learning_rate", "grad_norm", "tokens_per_second", "mfu")
"""The figures of a step that have a curve beside the loss."""

WINDOW = 100
"""Steps before a step that its loss is compared with."""

SPIKE = 6.0
"""Standard deviations above the mean of these steps from which on a loss is a spike."""

LOADS = 50
"""The load of an expert is the mean over so many last steps: a single batch may be of one kind of text."""

LEAST = 0.25
"""The smallest load of an expert without a warning, relative to the share of equal loads."""


@dataclass
class Training:
    """The steps of a run directory. Of a step that was taken twice the later entry counts.

    `tokens`: {step: tokens trained on}. `losses`, `figures`: {step: training loss, FIGURES}, of the steps that changed
    weights. `validation`: {step: {source: scores}}. `drawn`: {source: tokens}, `epochs`: {source: epochs} at the last
    step. `seconds`: of all steps, those that were repeated too; `device_seconds`: {device: the same, over the ranks}.
    `peak_bytes`: memory of the first rank. `loads`: shares of the experts, [layers][experts], of the last steps.
    """

    events: list[dict[str, Any]]
    tokens: dict[int, int] = field(default_factory=dict)
    losses: dict[int, float] = field(default_factory=dict)
    figures: dict[int, tuple[float | None, ...]] = field(default_factory=dict)
    validation: dict[int, dict[str, dict[str, Any]]] = field(default_factory=dict)
    drawn: dict[str, int] = field(default_factory=dict)
    epochs: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    device_seconds: dict[str, float] = field(default_factory=dict)
    peak_bytes: float | None = None
    spikes: list[int] = field(default_factory=list)
    loads: deque[list[list[float]]] = field(default_factory=lambda: deque(maxlen=LOADS))

    @property
    def sources(self) -> list[str]:
        """The sources with validation scores."""
        return sorted({source for scores in self.validation.values() for source in scores})

    @property
    def world_size(self) -> int | None:
        """The newest number of ranks; None if no event has it."""
        return next((event["world_size"] for event in reversed(self.events) if "world_size" in event), None)


def read(directory: Path, last: float = math.inf) -> Training:
    """Read the training of a run directory up to the step `last`. It is empty if the directory is gone."""
    training = Training([event for event in read_events(directory) if event["step"] <= last])
    starts = [event for event in training.events if journal.is_text(event.get("device"))]
    spikes = Spikes()
    for entry in history.entries(directory, training.events):
        step = entry["step"]
        if step > last:
            continue
        training.tokens[step] = entry["tokens"]
        if "validation" in entry:
            training.validation[step] = entry["validation"]
            continue
        if history.is_good(entry):
            training.losses[step] = entry["loss"]
            training.figures[step] = tuple(_number(entry.get(name)) for name in FIGURES)
            training.peak_bytes = memory * 1e6 if (memory := _number(entry.get("memory_mb"))) else None
            if spikes.add(entry["loss"]):
                training.spikes.append(step)
        else:
            training.losses.pop(step, None)
            training.figures.pop(step, None)
        training.drawn, training.epochs = (_by_source(entry.get(name)) for name in ("source_tokens", "source_epochs"))
        if "expert_load" in entry:
            training.loads.append(entry["expert_load"])
        seconds = _number(entry.get("seconds")) or 0.0
        training.seconds += seconds
        number = bisect_right(starts, entry.get("time", 0), key=lambda event: event["time"])
        if seconds and number:
            device, ranks = starts[number - 1]["device"], starts[number - 1].get("world_size", 1)
            seconds *= ranks if journal.is_count(ranks) else 1
            training.device_seconds[device] = training.device_seconds.get(device, 0) + seconds
    return training


def _number(value: Any) -> float | None:
    return value if journal.is_number(value) else None  # "n/a": the MFU of an unknown device


def _by_source(data: Any) -> dict[str, Any]:
    """Return the numbers of a line by source; {} for a damaged line."""
    return data if isinstance(data, dict) and all(map(journal.is_number, data.values())) else {}


class Spikes:
    """Finds spikes of the loss among steps that are added in order."""

    def __init__(self) -> None:
        self._window: deque[float] = deque()
        self._sum = self._squares = 0.0

    def add(self, loss: float) -> bool:
        """Add the loss of a step; returns whether it is a spike, once WINDOW steps are known."""
        is_spike = False
        if len(self._window) == WINDOW:
            mean = self._sum / WINDOW
            deviation = math.sqrt(max(self._squares / WINDOW - mean * mean, 0.0))
            is_spike = loss > mean + SPIKE * deviation and loss > 1.01 * mean  # a constant loss has no deviation
            first = self._window.popleft()
            self._sum, self._squares = self._sum - first, self._squares - first * first
        self._window.append(loss)
        self._sum, self._squares = self._sum + loss, self._squares + loss * loss
        return is_spike


@dataclass(frozen=True, kw_only=True)
class Health:
    """`jobs`: attempts at the run; `restarts`, `rollbacks`: tokens at which they were; `spikes`: their steps.

    A restart is a resume after an attempt that did not reach its milestone. `counts`: as of `history.trouble_counts`.
    """

    jobs: int = 0
    restarts: tuple[float, ...] = ()
    rollbacks: tuple[float, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    spikes: tuple[int, ...] = ()


def health_of(training: Training, tokens: Mapping[int, float]) -> Health:
    """Return the health of a run. `tokens`: {step: tokens at it}."""
    restarts, finished = [], True
    for event in training.events:
        if event["event"] == "resume" and not finished:
            restarts.append(event["step"])
        if event["event"] in ("start", "resume", "finish"):
            finished = event["event"] == "finish"
    rollbacks = sorted({event["step"] for event in training.events if event["event"] == "rollback"})
    return Health(
        jobs=sum(event["event"] == "attempt" for event in training.events),
        restarts=tuple(tokens.get(step, 0.0) for step in restarts),
        rollbacks=tuple(tokens.get(step, 0.0) for step in rollbacks),
        counts=history.trouble_counts(training.events),
        spikes=tuple(training.spikes),
    )


@dataclass(frozen=True, kw_only=True)
class Curves:
    """A run against tokens: the loss of training and of each source's validation text, and FIGURES.

    `validation`: {source: a curve per text on which its loss was measured, in the order of their first points}: points
    of different text are not joined. Lines of more points than a figure shows are thinned: a point is the mean of
    several steps, of grad_norm the largest value. `drawn`: {source: tokens that were drawn from it}, `epochs`: {source:
    epochs} at the last step. `seconds`: of all steps, those that were repeated too; `peak_bytes`: memory of the first
    rank; `world_size`: the newest. `problems`: sentences for the reader.
    """

    train: list[Point]
    validation: dict[str, list[list[Point]]]
    figures: dict[str, list[Point]] = field(default_factory=dict)
    drawn: Mapping[str, float] = field(default_factory=dict)
    epochs: Mapping[str, float] = field(default_factory=dict)
    health: Health = field(default_factory=Health)
    steps_per_point: int = 1
    seconds: float | None = None
    peak_bytes: float | None = None
    world_size: int | None = None
    problems: tuple[str, ...] = ()


def tokens_before(results: Results) -> dict[str, int]:
    """Return how many tokens each run's initial model was trained on: figures show a tuned run from there."""

    def of_run(run_name: str) -> int:
        origin = results.tuned_from(run_name)
        return results.models[origin].identity["tokens"] + of_run(origin[0]) if origin else 0

    return {run_name: of_run(run_name) for run_name in results.runs()}


def run_directories(results: Results) -> dict[str, Path]:
    """Return the run directory of each run's newest model; averaged weights have the curves of another run."""
    return {
        name: made.directory / made.record["run_directory"]
        for name, made in results.last_models().items()
        if made.stage != AVERAGE
    }


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
    training = read(directory)
    if not training.losses:
        logger.warning("missing: %s, so the curves of run %s are not drawn", directory / "metrics.jsonl", run_name)
    steps = sorted(training.losses)
    tokens = {step: number + before for step, number in training.tokens.items()}
    validation: dict[str, dict[Any, list[Point]]] = {}  # by the digest of the text
    for step in sorted(training.validation):
        for source, score in training.validation[step].items():
            point = (tokens[step], score["loss"], None)
            validation.setdefault(source, {}).setdefault(score.get("text"), []).append(point)
    losses: list[Point] = [(tokens[step], training.losses[step], None) for step in steps]
    figures = {}
    for number, name in enumerate(FIGURES):
        points: list[Point] = [
            (tokens[at], value, None) for at in steps if (value := training.figures[at][number]) is not None
        ]
        figures[name] = thinned(points, largest=name == "grad_norm")
    return Curves(
        train=thinned(losses) if with_loss else [],
        validation={name: [*of_texts.values()] for name, of_texts in validation.items()} if with_loss else {},
        figures=figures,
        drawn=training.drawn,
        epochs=training.epochs,
        steps_per_point=max(1, -(-len(steps) // POINTS)),
        seconds=training.seconds or None,
        peak_bytes=training.peak_bytes,
        world_size=training.world_size,
        health=health_of(training, tokens),
        problems=tuple(_problems(training, directory, run_name)),
    )


def _problems(training: Training, directory: Path, run_name: str) -> Iterator[str]:
    """Yield a sentence on skipped steps, rollbacks and hangs, and one on experts that get too few tokens."""
    if troubles := history.troubles(training.events):
        yield f"run {run_name}: {', '.join(troubles)}; see {os.path.normpath(directory / 'events.jsonl')}"
    loads = training.loads
    relative = [
        (sum(step[layer][expert] for step in loads) / len(loads) * len(shares), layer, expert)
        for layer, shares in enumerate(loads[0] if loads else ())
        for expert in range(len(shares))
    ]
    if idle := [load for load in relative if load[0] < LEAST]:
        least, layer, expert = min(idle)
        yield (
            f"run {run_name}: {len(idle)} experts had less than {LEAST:g} of an equal share of the tokens in the last "
            f"{len(loads)} steps, expert {expert} of layer {layer} {least:.2f}; see model.router_aux_loss_coef"
        )
