"""What a training tells: a line a step in metrics.jsonl, events.jsonl, the progress that a person sees, monitors."""

import logging
import math
import statistics
import time

import torch.distributed as dist

from stages.lib.log import logger
from stages.lib.run_directory import journal

UNTOLD = ("formula", "model_flops_per_token", "hardware_flops_per_token", "peak_flops")
"""Facts that stand in events.jsonl alone."""


class MetricsWriter:
    """The records of a run directory. Only the first rank writes; all ranks may call."""

    def __init__(self, directory, hosts):
        self.directory, self.hosts = directory, hosts
        self.first = dist.get_rank() == 0
        self.trackers = None
        self.loss = None

    def step(self, facts, numbers):
        """Write the line of a step: `facts` as they are, `numbers` with null for what is not finite."""
        finite = {name: value if math.isfinite(value) else None for name, value in numbers.items()}
        self.loss = finite["loss"]
        self._write({"step": facts["step"], "tokens": facts["tokens"], **finite, **facts, "time": time.time()})

    def validation(self, step, tokens, results):
        """Write the line of an evaluation."""
        self._write({"step": step, "tokens": tokens, "validation": results, "time": time.time()})
        if self.first:
            losses = ", ".join(f"{source} {scores['loss']:.4f}" for source, scores in results.items())
            logger.info("held out at step %s: %s", step, losses)

    def event(self, event, step, **facts):
        """Append a line to events.jsonl, and say it; but for a stop, whose reason is the stage's last line."""
        if not self.first:
            return
        if event != "stop":
            told = ", ".join(f"{name} {value}" for name, value in facts.items() if name not in UNTOLD)
            level = logging.WARNING if event == "rollback" else logging.INFO
            logger.log(level, "%s at step %s%s", event, step, f": {told}" if told else "")
        entry = {"time": time.time(), "event": event, "step": step, "world_size": len(self.hosts), **facts}
        journal.append(self.directory / "events.jsonl", entry)

    def ranks(self, seconds):
        """How long the ranks themselves worked, from the seconds of each: {"max", "median", "slowest": host}."""
        slowest = max(range(len(seconds)), key=seconds.__getitem__)
        return {"max": max(seconds), "median": statistics.median(seconds), "slowest": self.hosts[slowest]}

    def _write(self, entry):
        if self.first:
            journal.append(self.directory / "metrics.jsonl", entry)
            if self.trackers is not None:
                self.trackers.write(entry)
