"""The part of a run's metrics and events that a card shows: losses, data that was drawn, devices and their time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stages.lib.manifest import Manifest
from stages.lib.run_directory import history, journal
from stages.lib.run_directory.events import read_events


@dataclass
class TrainingHistory:
    """A training up to a step.

    `tokens`, `losses`: {step: tokens trained on, training loss}. `validation`: {step: {source: scores}}.
    `drawn`: {source: tokens}, `epochs`: {source: epochs} at the last step. `device_seconds`: {device: its seconds in
    steps, those that were repeated included, summed over the ranks}.
    """

    tokens: dict[int, int] = field(default_factory=dict)
    losses: dict[int, float] = field(default_factory=dict)
    validation: dict[int, dict[str, dict[str, float]]] = field(default_factory=dict)
    drawn: dict[str, int] = field(default_factory=dict)
    epochs: dict[str, float] = field(default_factory=dict)
    device_seconds: dict[str, float] = field(default_factory=dict)
    troubles: list[str] = field(default_factory=list)

    @property
    def sources(self) -> list[str]:
        """The sources with validation scores."""
        return sorted({source for scores in self.validation.values() for source in scores})


def read(model: Manifest) -> TrainingHistory:
    """Read the history of a milestone. It is empty if the run directory is gone.

    Of a step that was taken twice the later entry counts.
    """
    directory: Path = model.directory / model.record["run_directory"]
    last, found = model.identity["step"], TrainingHistory()
    events = [event for event in read_events(directory) if event["step"] <= last]
    starts = [event for event in events if journal.is_text(event.get("device"))]
    for entry in history.entries(directory, events):
        if entry["step"] > last:
            continue
        found.tokens[entry["step"]] = entry["tokens"]
        if "validation" in entry:
            found.validation[entry["step"]] = entry["validation"]
        else:
            _add_step(found, entry, starts)
    found.troubles = history.troubles(events)
    return found


def _add_step(found: TrainingHistory, entry: dict[str, Any], starts: Sequence[dict[str, Any]]) -> None:
    if history.is_good(entry):
        found.losses[entry["step"]] = entry["loss"]
    else:
        found.losses.pop(entry["step"], None)
    found.drawn, found.epochs = (_by_source(entry.get(name)) for name in ("source_tokens", "source_epochs"))
    number = bisect_right(starts, entry.get("time", 0), key=_time)
    if number and journal.is_number(entry.get("seconds")):
        start = starts[number - 1]
        ranks = start.get("world_size", 1)
        seconds = entry["seconds"] * (ranks if journal.is_count(ranks) else 1)
        found.device_seconds[start["device"]] = found.device_seconds.get(start["device"], 0) + seconds


def _by_source(data: Any) -> dict[str, Any]:
    """Return the numbers of a line by source; {} for a damaged line."""
    return data if isinstance(data, dict) and all(map(journal.is_number, data.values())) else {}


def _time(event: dict[str, Any]) -> float:
    return event["time"]
