"""metrics.jsonl and events.jsonl of a run directory, and the log lines beside them."""

import logging
import time
from pathlib import Path
from typing import Any

from stages.lib.log import logger
from stages.lib.run_directory import journal
from stages.lib.training.metrics.callback import Callback

UNLOGGED = ("formula", "model_flops_per_token", "hardware_flops_per_token", "peak_flops")
"""Facts of an event that are in events.jsonl only."""


class MetricsWriter(Callback):
    """Writes the journals of a run directory; for the first rank only."""

    def __init__(self, directory: Path, world_size: int) -> None:
        self.directory, self.world_size = directory, world_size

    def metrics(self, entry: dict[str, Any]) -> None:
        """Append the line of a step or an evaluation, and log the losses of the latter."""
        journal.append(self.directory / "metrics.jsonl", entry)
        if "validation" in entry:
            results = entry["validation"]
            losses = ", ".join(f"{source} {scores['loss']:.4f}" for source, scores in results.items())
            logger.info("validation loss at step %s, in %.1f s: %s", entry["step"], entry["validation_seconds"], losses)

    def event(self, event: str, step: int, facts: dict[str, Any]) -> None:
        """Append the line of an event, and log it, except a stop: its reason is the last line of the stage."""
        if event != "stop":
            logged = ", ".join(f"{name} {value}" for name, value in facts.items() if name not in UNLOGGED)
            level = logging.WARNING if event == "rollback" else logging.INFO
            logger.log(level, "%s at step %s%s", event, step, f": {logged}" if logged else "")
        entry = {"time": time.time(), "event": event, "step": step, "world_size": self.world_size, **facts}
        journal.append(self.directory / "events.jsonl", entry)
