"""Warnings of sparse models whose routers leave experts without work, from the metrics of their runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stages.lib.report.curves import run_directories
from stages.lib.report.results import Results
from stages.lib.run_directory import history
from stages.lib.run_directory.events import read_events

STEPS = 50
"""The load is the mean over so many last steps: a single batch may be of one kind of text."""

LAST_BYTES = 1 << 20
"""Bytes of metrics.jsonl in which these steps are looked for: an entry of 48 layers with 128 experts has 50 kB."""

LEAST = 0.25
"""The smallest load of an expert without a warning, relative to the share of equal loads."""


def load_problems(results: Results) -> list[str]:
    """Return a sentence on each run with an expert that gets too few tokens."""
    sentences = []
    for run_name, directory in run_directories(results).items():
        loads = _last_loads(directory)
        idle = [found for found in _relative(loads) if found[0] < LEAST] if loads else []
        if idle:
            least, layer, expert = min(idle)
            sentences.append(
                f"run {run_name}: {len(idle)} experts had less than {LEAST:g} of an equal share of the tokens in the "
                f"last {len(loads)} steps, expert {expert} of layer {layer} {least:.2f}; see model.router_aux_loss_coef"
            )
    return sentences


def _last_loads(directory: Path) -> list[list[list[float]]]:
    """The shares [layers][experts] of the last steps of a run; none of a dense model."""
    entries = history.entries(directory, read_events(directory), LAST_BYTES)
    return [entry["expert_load"] for entry in entries if "expert_load" in entry][-STEPS:]


def _relative(loads: Sequence[Sequence[Sequence[float]]]) -> list[tuple[float, int, int]]:
    """(mean load relative to an equal share, layer, expert) of all experts."""
    return [
        (sum(step[layer][expert] for step in loads) / len(loads) * len(shares), layer, expert)
        for layer, shares in enumerate(loads[0])
        for expert in range(len(shares))
    ]
