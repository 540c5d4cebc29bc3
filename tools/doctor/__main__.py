"""Check in under a minute whether the machines are fit for a run, and report what is wrong with them.

    python -m tools.doctor --directory results
    workflow/launch 2 -m tools.doctor
    srun or sbatch: workflow/launch --nodes N --cpus C GPUS -m tools.doctor

Without the launcher it checks this machine: a laptop, a login node. With the launcher it runs on the ranks of a
training, and the first rank prints the results. One line per check: ok, warning or FAIL. The exit code is 2 if a check
failed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from stages.lib import stage
from stages.lib.errors import RankLocalError, UserError
from tools.doctor import (
    clocks,
    collectives,
    disk_space,
    filesystem,
    gpus,
    host,
    network,
    nodes,
    rendezvous,
    slurm,
    versions,
)
from tools.doctor.result import FAIL, WARNING
from tools.doctor.runner import Check, CheckRunner

CHECKS: tuple[Check, ...] = (
    nodes,
    versions,
    gpus,
    host,
    filesystem,
    disk_space,
    clocks,
    network,
    collectives,
    slurm,
)


def run(arguments: argparse.Namespace) -> None:
    """Run the checks and print their results. Raises UserError if one failed."""
    check_options(arguments)
    begin = time.monotonic()
    runner = CheckRunner(rendezvous.join(), arguments)
    runner.gather_hosts(rendezvous.JOIN_SECONDS)
    for check in CHECKS:
        for result in runner.run(check):
            print(result, flush=True)
    if runner.rendezvous.rank == 0:
        print_summary(runner, time.monotonic() - begin)


def print_summary(runner: CheckRunner, seconds: float) -> None:
    """Print the summary. Raises UserError if a check failed."""
    failed = [result.name for result in runner.results if result.level == FAIL]
    warned = [result.name for result in runner.results if result.level == WARNING]
    warnings = f"; {_count(len(warned), 'warning')} ({', '.join(warned)})" if warned else ""
    if failed:
        text = f"not fit for a run: {_count(len(failed), 'check')} failed ({', '.join(failed)}){warnings}"
        # torchrun must end the ranks that do not answer
        raise (RankLocalError if runner.missing else UserError)(text)
    print(f"fit for a run: {_count(len(runner.results), 'check')} in {seconds:.0f} s{warnings}", flush=True)


def _count(number: int, name: str) -> str:
    return f"{number} {name}{'' if number == 1 else 's'}"


def check_options(arguments: argparse.Namespace) -> None:
    """Raise UserError if an option is not valid."""
    if arguments.directory.exists() and not arguments.directory.is_dir():
        raise UserError(f"--directory must be a directory, got the file {arguments.directory}")
    if arguments.need is not None and not arguments.need > 0:
        raise UserError(f"--need must be a number of GB above 0, got {arguments.need:g}")
    for name in ("partition", "account"):
        if getattr(arguments, name) == "":
            raise UserError(f"--{name} must be a name in Slurm, got an empty one")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool; return its exit code."""
    parser = stage.parser("tools.doctor", __doc__)
    parser.add_argument(
        "--directory", type=Path, default=Path("results"), metavar="DIR", help="where runs write (default: results)"
    )
    parser.add_argument("--need", type=float, metavar="GB", help="disk space that the run needs there (10^9 bytes)")
    parser.add_argument("--slurm", action="store_true", help="fail if Slurm is missing")
    parser.add_argument("--partition", metavar="NAME", help="partition of Slurm that must exist")
    parser.add_argument("--account", metavar="NAME", help="account of Slurm that must be one of yours")
    return stage.execute(parser, run, argv)


if __name__ == "__main__":
    stage.leave(main())
