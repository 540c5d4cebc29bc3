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


Speeds = dict[tuple[str, bool], tuple[float, str]]
"""{(torch's name of a GPU, True with float8): (MFU, run directory)}. An MFU is of the bfloat16 peak in any case."""


def mfu_by_device(results: Path) -> Speeds:
    """Return the MFU of the run directories below `results`.

    It is the median over the last steps of the newest run directory. Steps on a device of unknown peak have none.
    """
    directories = sorted(results.glob("runs/*/train/*"), key=lambda path: path.stat().st_mtime)
    return {device: (mfu, str(path)) for path in directories for device, mfu in _of_directory(path).items()}


def _of_directory(directory: Path) -> Mapping[tuple[str, bool], float]:
    events = read_events(directory)
    starts = [event for event in events if event["event"] in STARTS and "device" in event]
    entries = history.entries(directory, events, history.TAIL)
    found = [share for entry in entries if (share := _share(entry.get("mfu"))) is not None][-STEPS:]
    if not starts or not found:
        return {}
    device = str(starts[-1]["device"]).removeprefix("NVIDIA ")
    return {(device, bool(starts[-1].get("float8"))): statistics.median(found)}


def _share(value: Any) -> float | None:
    return value if isinstance(value, float) and 0 < value <= 1 else None
