"""Step, loss and time left of trainings that run in jobs of a cluster, read from their run directories."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

TAIL_BYTES = 16 << 10
"""Bytes at the end of metrics.jsonl that are read: 10 to 20 steps."""

TRAINING = ("pretrain", "finetune")


def training_line(model: Path, since: float) -> str | None:
    """Return "step 12/100, loss 3.210, 1:02:03 left" of the training that makes a milestone's manifest.

    None if it has no step after `since`, in seconds since 1970: the job waits in the queue, or starts.
    """
    steps = [step for step in _last_steps(model.parents[1] / "train") if step["time"] >= since]
    if not steps:
        return None
    newest, until = steps[-1], model.stem
    if not until.isdigit():  # of epochs: how many steps they have is not known here
        return f"step {newest['step']}{_loss(newest)}"
    text = f"step {newest['step']}/{int(until)}{_loss(newest)}"
    if newest["step"] == int(until):  # the manifest is written after the evaluation
        return f"{text}, validation for {duration(time.time() - newest['time'])}"
    taken = newest["step"] - steps[0]["step"]
    if taken <= 0:
        return text
    return f"{text}, {duration((int(until) - newest['step']) * (newest['time'] - steps[0]['time']) / taken)} left"


def _loss(step: dict[str, Any]) -> str:
    return f", loss {step['loss']:.3f}" if isinstance(step["loss"], float) else ""


def _last_steps(runs: Path) -> list[dict[str, Any]]:
    """Return the last steps of the run directory that changed last."""
    files = {path: path.stat().st_mtime for path in runs.glob("*/metrics.jsonl")}
    if not files:
        return []
    with open(max(files, key=files.__getitem__), "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
        lines = file.read().splitlines()
    return [entry for entry in map(_parse, lines) if entry is not None]


def _parse(line: bytes) -> dict[str, Any] | None:
    """Return the entry of a step; None for other lines, and for those that are cut off."""
    try:
        entry = json.loads(line)
        known = isinstance(entry["step"], int) and isinstance(entry["time"], float) and "loss" in entry
    except (ValueError, TypeError, KeyError):
        return None
    return entry if known else None


def duration(seconds: float) -> str:
    """Return a duration as 39 s, 3:07 (minutes) or 2:03:07 (hours)."""
    if seconds < 60:
        return f"{max(0.0, seconds):.0f} s"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
