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
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.lib import files, stage
from stages.lib.errors import UserError
from stages.lib.log import logger
from tools.ablate import grid, setting
from tools.ablate.grid import Cell, shown, words_of
from tools.ablate.setting import Setting

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


def markdown(outcomes: Sequence[Outcome], title: str) -> str:
    """Return a table with a line per cell, and below it the sentences of the cells that were not measured."""
    keys = list(outcomes[0].cell)
    rows = [[*keys, *HEADS, "result"]]
    for outcome in outcomes:
        values = [shown(value) for value in outcome.cell.values()]
        rows.append([*values, *(_figure(outcome, number) for number in range(len(FIGURES))), outcome.result])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [title, "", _line(rows[0], widths, len(keys)), _rule(widths, len(keys))]
    lines += [_line(row, widths, len(keys)) for row in rows[1:]]
    reasons = [f"- {words_of(outcome.cell)}: {outcome.reason}" for outcome in outcomes if outcome.reason]
    return "\n".join([*lines, *([""] if reasons else []), *reasons]) + "\n"


def _figure(outcome: Outcome, number: int) -> str:
    value = outcome.figures.get(FIGURES[number], "-")
    return value if isinstance(value, str) else FORMATS[number].format(value)


def _line(texts: Sequence[str], widths: Sequence[int], num_keys: int) -> str:
    """Return a line; the columns of figures are aligned at the right."""
    sides = ["<"] * num_keys + [">"] * len(HEADS) + ["<"]
    cells = [f"{text:{side}{width}}" for text, side, width in zip(texts, sides, widths, strict=True)]
    return f"| {' | '.join(cells)} |"


def _rule(widths: Sequence[int], num_keys: int) -> str:
    right = range(num_keys, num_keys + len(HEADS))
    cells = ["-" * (width - 1) + (":" if column in right else "-") for column, width in enumerate(widths)]
    return f"| {' | '.join(cells)} |"


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
    cells = grid.cells(grid.parse(arguments.grid))
    found = setting.read(arguments.config, arguments.run, arguments.vocab_size)
    for key in ("seq_len", "global_batch_size"):
        if key not in found.training:
            raise UserError(f"the run {found.run} of {arguments.config} must have {key}")
    outcomes = []
    for number, cell in enumerate(cells, 1):
        outcome = measure(found, cell, arguments)
        logger.info("%d of %d, %s: %s", number, len(cells), grid.words_of(cell), outcome.reason or speed_of(outcome))
        outcomes.append(outcome)
    facts = facts_of(found, arguments, outcomes)
    if arguments.file is not None:
        write = WRITERS[arguments.file.suffix]
        with files.atomic(arguments.file, "w") as file:
            file.write(write(outcomes, facts))
    print(markdown(outcomes, title_of(facts)), end="")


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


def measure(found: Setting, cell: Cell, arguments: argparse.Namespace) -> Outcome:
    """Measure one cell in processes of its own."""
    recipe = grid.applied(found.recipe() | {"steps": arguments.steps}, cell)
    with tempfile.TemporaryDirectory(prefix="caravan-ablate-") as scratch:
        output = Path(scratch) / "figures.json"
        code, printed = launch(arguments, ["--recipe", json.dumps(recipe), "--output", str(output)])
        if code == 0:
            return Outcome(cell, MEASURED, files.read_json_object(output))
    reason = reason_of(code, printed)
    is_memory = reason.startswith("out of memory")
    return Outcome(cell, OUT_OF_MEMORY if is_memory else REFUSED, {}, reason)


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


def reason_of(code: int, printed: str) -> str:
    """Return the sentence with which a cell ended; torchrun prints a page below it."""
    name = CELL.rpartition(".")[2]
    for line in printed.splitlines():
        if line.startswith(f"{name}: "):
            return line.removeprefix(f"{name}: ").replace(f"{name}.", "")
    if code in KILLED or "SIGKILL" in printed:
        return "out of memory: a process was killed by SIGKILL, as the kernel does when memory runs out"
    last = (printed.strip().splitlines() or ["nothing was printed"])[-1]
    return f"a process ended with exit code {code}: {last}"


def speed_of(outcome: Outcome) -> str:
    """Return the figures of a cell for the log."""
    return "{step_seconds:.3f} s per step, {peak_memory_mb:,} MB".format(**outcome.figures)


def facts_of(found: Setting, arguments: argparse.Namespace, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return what all cells have in common."""
    device = next((outcome.figures["device"] for outcome in outcomes if outcome.figures), "unknown")
    sizes = {key: found.training[key] for key in ("global_batch_size", "seq_len")}
    return {"run": found.run, "ranks": arguments.ranks, "steps": arguments.steps, "device": device, **sizes}


def title_of(facts: dict[str, Any]) -> str:
    """Return the line above the table."""
    return (
        "Run {run}: {global_batch_size} samples of {seq_len} tokens per step, {ranks} ranks, device {device}; "
        "medians of {steps} steps"
    ).format(**facts)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool; returns its exit code."""
    parser = stage.parser("tools.ablate", __doc__)
    add = parser.add_argument
    add("config", type=Path, metavar="CONFIG", help="a config, as --configfile of the workflow")
    add("--run", metavar="NAME", help="the run (default: the only one)")
    add("--grid", nargs="+", required=True, metavar="KEY=VALUE,...", help=f"values to try of {', '.join(grid.KEYS)}")
    add("--ranks", type=int, default=1, metavar="N", help="processes: one per GPU (default: 1)")
    add("--threads", type=int, default=1, metavar="N", help="threads per process, OMP_NUM_THREADS (default: 1)")
    add("--steps", type=int, default=5, metavar="N", help="measured steps per cell (default: 5)")
    add("--vocab-size", type=int, metavar="N", help="number of token ids (default: that of the config)")
    add("--output", dest="file", type=Path, metavar="FILE", help="the table as .csv or .json, too")
    return stage.execute(parser, run, argv)


if __name__ == "__main__":
    stage.leave(main())
