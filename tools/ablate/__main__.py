"""Measure training steps of a run under other settings: a table of step time, tokens per second and peak memory.

    python -m tools.ablate config/llama3-1b.yaml --ranks 8 --output ablation.csv \\
        --grid sharding=full,none activation_checkpointing.mode=none,full micro_batch_size=1,2
    python -m tools.ablate config/config.yaml --run base --ranks 2 --steps 3 --grid sharding=full,grad,none

Each combination is a cell. A cell has its own processes, started by workflow/launch, so that one that runs out of
memory ends alone. global_batch_size is that of the config in all cells: with a smaller micro_batch_size, gradients are
accumulated over more forward passes. The other keys are the run's own. A cell that cannot run is shown with its reason.

Tokens are random and nothing is saved: the table needs neither a corpus nor a checkpoint. The steps are those of
training, without reading, validation and checkpoints. Memory is that of the rank which needs most: allocated on a GPU,
resident on a CPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.lib import files, stage
from stages.lib.errors import UserError
from stages.lib.log import logger
from tools.ablate import setting
from tools.ablate.setting import Setting

KEYS = (
    *("sharding", "shard_degree", "cpu_offload", "activation_checkpointing.mode", "activation_checkpointing.ratio"),
    *("micro_batch_size", "compile", "deterministic", "dtype", "weights_dtype", "float8", "cuda_graphs"),
    *("optimizer.name", "optimizer.state_dtype"),
)
"""Keys that change the speed or the memory of a step, but neither its samples nor the model."""

Cell = dict[str, Any]
"""{dotted key: value}"""

MEASURED, OUT_OF_MEMORY, REFUSED = "measured", "out of memory", "refused"
FIGURES = ("gradient_accumulation_steps", "step_seconds", "tokens_per_second", "mfu", "peak_memory_mb")
HEADS = ("accumulation", "step (s)", "tokens/s", "MFU", "peak memory (MB)")
FORMATS = ("{:d}", "{:.3f}", "{:,.0f}", "{:.1%}", "{:,d}")


@dataclass(frozen=True)
class Outcome:
    """Outcome of a cell. `result`: MEASURED, OUT_OF_MEMORY or REFUSED; `reason`: the sentence unless measured."""

    cell: Cell
    result: str
    figures: dict[str, Any]
    reason: str | None = None


def parse_grid(words: Sequence[str]) -> dict[str, list[Any]]:
    """Return {key: values} of `KEY=VALUE,VALUE,...` words. Raises UserError."""
    import yaml

    grid: dict[str, list[Any]] = {}
    for word in words:
        key, equals, values = word.partition("=")
        if key not in KEYS:
            raise UserError(f"--grid must have keys among {', '.join(KEYS)}, got {key!r}")
        if key in grid:
            raise UserError(f"--grid must name each key once, got {key} again")
        if not equals or "" in values.split(","):
            raise UserError(f"--grid must be KEY=VALUE,VALUE,..., got {word!r}")
        try:
            grid[key] = [yaml.safe_load(value) for value in values.split(",")]
        except yaml.YAMLError:
            raise UserError(f"--grid {key} must have numbers, words, true or false as values, got {values!r}") from None
    return grid


def applied(recipe: Mapping[str, Any], cell: Cell) -> dict[str, Any]:
    """Return the keys of a recipe with those of a cell in their place."""
    result = dict(recipe)
    for key, value in cell.items():
        group, dot, name = key.rpartition(".")
        if dot:
            own = result.get(group)
            if not isinstance(own, dict | None):
                raise UserError(f"{group} of the run must be a mapping beside --grid {key}, got {own!r:.100}")
            result[group] = {**(own or {}), name: value}
        else:
            result[key] = value
    return result


def words_of(cell: Cell) -> str:
    """Return a cell in the form of --grid: `sharding=full micro_batch_size=2`."""
    return " ".join(f"{key}={shown(value)}" for key, value in cell.items())


def shown(value: Any) -> str:
    """Return a value as YAML writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def markdown(outcomes: Sequence[Outcome], title: str) -> str:
    """Return a table with a line per cell, and below it the sentences of the cells that were not measured."""
    keys = list(outcomes[0].cell)
    rows = [[*keys, *HEADS, "result"]]
    for outcome in outcomes:
        figures = [outcome.figures.get(name, "-") for name in FIGURES]
        texts = [
            figure if isinstance(figure, str) else form.format(figure)
            for figure, form in zip(figures, FORMATS, strict=True)
        ]
        rows.append([*map(shown, outcome.cell.values()), *texts, outcome.result])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = ["<"] * len(keys) + [">"] * len(HEADS) + ["<"]  # figures are aligned at the right
    lines = [
        " | ".join(f"{text:{side}{width}}" for text, side, width in zip(row, sides, widths, strict=True))
        for row in rows
    ]
    rule = ["-" * (width - 1) + (":" if side == ">" else "-") for side, width in zip(sides, widths, strict=True)]
    table = [f"| {line} |" for line in (lines[0], " | ".join(rule), *lines[1:])]
    reasons = [f"- {words_of(outcome.cell)}: {outcome.reason}" for outcome in outcomes if outcome.reason]
    return "\n".join([title, "", *table, *([""] if reasons else []), *reasons]) + "\n"


def as_json(outcomes: Sequence[Outcome], facts: dict[str, Any]) -> str:
    """Return the facts that all cells share, and the cells."""
    return json.dumps(facts | {"cells": [dataclasses.asdict(outcome) for outcome in outcomes]}, indent=2) + "\n"


def as_csv(outcomes: Sequence[Outcome], facts: dict[str, Any]) -> str:
    """Return a line per cell; the facts that all share are the first columns."""
    text = io.StringIO()
    columns = [*facts, *outcomes[0].cell, *FIGURES, "result", "reason"]
    endings = [{"result": outcome.result, "reason": outcome.reason} for outcome in outcomes]
    rows = [facts | outcome.cell | outcome.figures | ending for outcome, ending in zip(outcomes, endings, strict=True)]
    files.write_csv(text, columns, rows)
    return text.getvalue()


HOME = Path(__file__).resolve().parents[2]
LAUNCH = HOME / "workflow/launch"
CELL = "tools.ablate.cell"
WRITERS = {".json": as_json, ".csv": as_csv}
KILLED = (137, -9)
"""Exit codes after SIGKILL, which the kernel sends when memory runs out."""


def run(arguments: argparse.Namespace) -> None:
    """Measure all cells, print the table, and write it to --output."""
    check_options(arguments)
    grid = parse_grid(arguments.grid)
    # the last key changes first
    cells: list[Cell] = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    measured = setting.read(arguments.config, arguments.run, arguments.vocab_size)
    outcomes = []
    for number, cell in enumerate(cells, 1):
        outcome = measure(measured, cell, arguments)
        speed = "{step_seconds:.3f} s per step, {peak_memory_mb:,} MB"
        text = outcome.reason or speed.format(**outcome.figures)
        logger.info("%d of %d, %s: %s", number, len(cells), words_of(cell), text)
        outcomes.append(outcome)
    device = next((outcome.figures["device"] for outcome in outcomes if outcome.figures), "unknown")
    sizes = {key: measured.training[key] for key in ("global_batch_size", "seq_len")}
    facts = {"run": measured.run, "ranks": arguments.ranks, "steps": arguments.steps, "device": device, **sizes}
    if arguments.file is not None:
        write = WRITERS[arguments.file.suffix]
        with files.atomic(arguments.file, "w") as file:
            file.write(write(outcomes, facts))
    title = (
        "Run {run}: {global_batch_size} samples of {seq_len} tokens per step, {ranks} ranks, device {device}; "
        "medians of {steps} steps"
    )
    print(markdown(outcomes, title.format(**facts)), end="")


def check_options(arguments: argparse.Namespace) -> None:
    """Raise UserError for a number out of bounds, or an output of another format."""
    for name in ("ranks", "steps", "threads", "vocab_size"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise UserError(f"--{name.replace('_', '-')} must be at least 1, got {value}")
    if arguments.file is not None and arguments.file.suffix not in WRITERS:
        raise UserError(f"--output must end in {' or '.join(WRITERS)}, got {arguments.file}")
    if arguments.file is not None:  # before hours of measuring
        files.check_output(arguments.file, "--output ")


def measure(run: Setting, cell: Cell, arguments: argparse.Namespace) -> Outcome:
    """Measure one cell in processes of its own."""
    recipe = applied(run.recipe() | {"steps": arguments.steps}, cell)
    with tempfile.TemporaryDirectory(prefix="caravan-ablate-") as scratch:
        output = Path(scratch) / "figures.json"
        code, printed = launch(arguments, ["--recipe", json.dumps(recipe), "--output", str(output)])
        if code == 0:
            return Outcome(cell, MEASURED, files.read_json_object(output))
    name = CELL.rpartition(".")[2]
    # torchrun prints a page below the sentence of a cell
    reason = next((line for line in printed.splitlines() if line.startswith(f"{name}: ")), "")
    if reason:
        reason = reason.removeprefix(f"{name}: ").replace(f"{name}.", "")
    elif code in KILLED or "SIGKILL" in printed:
        reason = "out of memory: a process was killed by SIGKILL, as the kernel does when memory runs out"
    else:
        last = (printed.strip().splitlines() or ["nothing was printed"])[-1]
        reason = f"a process ended with exit code {code}: {last}"
    return Outcome(cell, OUT_OF_MEMORY if reason.startswith("out of memory") else REFUSED, {}, reason)


def launch(arguments: argparse.Namespace, options: Sequence[str]) -> tuple[int, str]:
    """Run a cell; return (exit code, what its processes printed). If this tool is interrupted, they end as well."""
    path = os.pathsep.join(filter(None, [str(HOME), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {
        "PYTHONPATH": path,
        "PYTHONSAFEPATH": "1",  # a folder `stages` in the working directory is another's
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    command = [str(LAUNCH), "--threads", str(arguments.threads), str(arguments.ranks), "-m", CELL, *options]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, errors="replace")
    try:
        _, printed = process.communicate()
    except BaseException:
        process.terminate()
        process.wait()
        raise
    return process.returncode, printed


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool; returns its exit code."""
    parser = stage.parser("tools.ablate", __doc__)
    add = parser.add_argument
    add("config", type=Path, metavar="CONFIG", help="a config, as --configfile of the workflow")
    add("--run", metavar="NAME", help="the run (default: the only one)")
    add("--grid", nargs="+", required=True, metavar="KEY=VALUE,...", help=f"values to try of {', '.join(KEYS)}")
    add("--ranks", type=int, default=1, metavar="N", help="processes: one per GPU (default: 1)")
    add("--threads", type=int, default=1, metavar="N", help="threads per process, OMP_NUM_THREADS (default: 1)")
    add("--steps", type=int, default=5, metavar="N", help="measured steps per cell (default: 5)")
    add("--vocab-size", type=int, metavar="N", help="number of token ids (default: that of the config)")
    add("--output", dest="file", type=Path, metavar="FILE", help="the table as .csv or .json, too")
    return stage.execute(parser, run, argv)


if __name__ == "__main__":
    stage.leave(main())
