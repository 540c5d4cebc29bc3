"""The MFU that earlier trainings of this results directory reached. Imports no torch."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stages.lib.run_directory import history
from stages.lib.run_directory.events import read_events

STEPS = 200
"""Number of last steps of a run directory whose median counts."""

STARTS = ("start", "resume")


def mfu_by_device(results: Path) -> dict[str, tuple[float, str]]:
    """Return {torch's name of a GPU: (MFU, run directory)} of the run directories below `results`.

    It is the median over the last steps of the newest run directory. Steps on a device of unknown peak have none.
    """
    directories = sorted(results.glob("runs/*/train/*"), key=lambda path: path.stat().st_mtime)
    return {device: (mfu, str(path)) for path in directories for device, mfu in _of_directory(path).items()}


def _of_directory(directory: Path) -> Mapping[str, float]:
    events = read_events(directory)
    devices = [str(event["device"]) for event in events if event["event"] in STARTS and "device" in event]
    entries = history.entries(directory, events, history.TAIL)
    found = [share for entry in entries if (share := _share(entry.get("mfu"))) is not None][-STEPS:]
    return {devices[-1].removeprefix("NVIDIA "): statistics.median(found)} if devices and found else {}


def _share(value: Any) -> float | None:
    return value if isinstance(value, float) and 0 < value <= 1 else None
