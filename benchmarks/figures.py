"""The figures that have a goal: where each stands in the raw results, and the table of all."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"

Found = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure of a benchmark. `value` reads it from the raw results; `goal` is the least value, or the largest one."""

    benchmark: str
    text: str
    value: Callable[[Found], float]
    goal: float
    at_most: bool = False
    unit: str = "x"

    def row(self) -> list[str]:
        """Return the cells of its row: "-" for what was not measured."""
        sign, form = ("\u2264" if self.at_most else "\u2265"), "{:,.2f} {}"
        goal = f"{sign} {form.format(self.goal, self.unit)}"
        try:
            found = json.loads((RESULTS / f"{self.benchmark}.json").read_text(encoding="utf-8"))
            value = self.value(found)
        except (OSError, LookupError, ValueError):
            return [self.text, "-", goal, "not measured", f"`{self.benchmark}`"]
        reached = value <= self.goal if self.at_most else value >= self.goal
        state = "reached" if reached else f"{value / self.goal:.2f} of it"
        return [self.text, form.format(value, self.unit), goal, state, f"`{self.benchmark}`, {found['date']}"]


def _peer(name: str, figure: str) -> Callable[[Found], float]:
    return lambda found: found["ratios"][name][figure]


def _loader(length: str) -> Callable[[Found], float]:
    """Read our best packing over the fastest peer that reads the same shards."""

    def value(found: Found) -> float:
        speeds = {name: of["tokens_per_cpu_second"] for name, of in found["figures"][length].items()}
        ours = max(speed for name, speed in speeds.items() if name.startswith("caravan"))
        return ours / max(speeds[name] for name in ("torch memmap", "datasets", "litdata") if name in speeds)

    return value


def _plan(name: str) -> Callable[[Found], float]:
    return lambda found: found["plans"][name]["seconds"]


def _resume(found: Found) -> float:
    """Read the seconds above 1.3 times the read of the checkpoint's bytes."""
    return found["medians"]["resume"] - 1.3 * found["medians"]["read"]


FIGURES = (
    Figure(
        benchmark="tokenize",
        text="tokenize, tokens per CPU-second: over a Megatron-style pool",
        value=_peer("megatron", "tokens_per_cpu_second"),
        goal=6,
    ),
    Figure(
        benchmark="tokenize",
        text="tokenize, tokens per CPU-second: over datatrove",
        value=_peer("datatrove", "tokens_per_cpu_second"),
        goal=9,
    ),
    Figure(benchmark="loader", text="loader, L=512: over the fastest peer", value=_loader("512"), goal=5),
    Figure(benchmark="loader", text="loader, L=4096: over the fastest peer", value=_loader("4096"), goal=3),
    Figure(
        benchmark="train_cpu",
        text="CPU training step: over transformers",
        value=_peer("transformers", "tokens_per_second"),
        goal=1.15,
    ),
    Figure(
        benchmark="train_cpu",
        text="CPU training step: over litgpt",
        value=_peer("litgpt", "tokens_per_second"),
        goal=1.15,
    ),
    Figure(
        benchmark="train_cpu",
        text="CPU training step, peak memory: of transformers'",
        value=_peer("transformers", "peak_mb"),
        goal=0.5,
        at_most=True,
    ),
    Figure(
        benchmark="start",
        text="start of a training to its first step, tiny model, one process",
        value=lambda found: found["medians"]["new run, 1 process"],
        goal=4,
        at_most=True,
        unit="s",
    ),
    Figure(
        benchmark="start",
        text="resume from 1 GB: above 1.3 times the read of its bytes",
        value=_resume,
        goal=4,
        at_most=True,
        unit="s",
    ),
    Figure(
        benchmark="convert",
        text="conversion without parity: over a copy of the files",
        value=lambda found: found["writing_to_copy"],
        goal=3,
        at_most=True,
    ),
    Figure(
        benchmark="evaluate",
        text="evaluation: over the harness' command line, CPU",
        value=lambda found: found["ratio"]["cpu_seconds"],
        goal=1,
        at_most=True,
    ),
    Figure(benchmark="workflow", text="plan of the default", value=_plan("default"), goal=3, at_most=True, unit="s"),
    Figure(
        benchmark="workflow", text="plan of 10,000 files", value=_plan("10,000 files"), goal=20, at_most=True, unit="s"
    ),
    Figure(benchmark="workflow", text="plan of 200 runs", value=_plan("200 runs"), goal=20, at_most=True, unit="s"),
    Figure(
        benchmark="workflow",
        text="the demo after the install",
        value=lambda found: found["demo"]["whole"]["seconds"],
        goal=180,
        at_most=True,
        unit="s",
    ),
)
"""All figures with a goal, in the order of the table."""

TITLES = ("figure", "measured", "goal", "", "from")


def table() -> list[str]:
    """Return the lines of the table, as Markdown."""
    rows = [TITLES, ("---",) * len(TITLES), *(figure.row() for figure in FIGURES)]
    return [f"| {' | '.join(row)} |" for row in rows]
