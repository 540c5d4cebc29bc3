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
from stages.lib.render.numbers import several
from tools.doctor import runner
from tools.doctor.filesystem import DISK_SPACE, FILESYSTEM
from tools.doctor.gpus import GPUS
from tools.doctor.hosts import HOST, NODES, VERSIONS
from tools.doctor.network import CLOCKS, COLLECTIVES, NETWORK
from tools.doctor.runner import FAIL, WARNING, Check, CheckRunner
from tools.doctor.slurm import SLURM

CHECKS: tuple[Check, ...] = (
    *(NODES, VERSIONS, GPUS, HOST, FILESYSTEM, DISK_SPACE),
    *(CLOCKS, NETWORK, COLLECTIVES, SLURM),
)


def run(arguments: argparse.Namespace) -> None:
    """Run the checks, and print their results and a summary. Raises UserError if one failed."""
    check_options(arguments)
    begin = time.monotonic()
    checks = CheckRunner(runner.join(), arguments)
    checks.gather_hosts(runner.JOIN_SECONDS)
    for check in CHECKS:
        for result in checks.run(check):
            print(result, flush=True)
    if checks.rendezvous.rank:
        return
    failed = [result.name for result in checks.results if result.level == FAIL]
    warned = [result.name for result in checks.results if result.level == WARNING]
    warnings = f"; {several(len(warned), 'warning')} ({', '.join(warned)})" if warned else ""
    if failed:
        text = f"not fit for a run: {several(len(failed), 'check')} failed ({', '.join(failed)}){warnings}"
        # torchrun must end the ranks that do not answer
        raise (RankLocalError if checks.missing else UserError)(text)
    seconds = time.monotonic() - begin
    print(f"fit for a run: {several(len(checks.results), 'check')} in {seconds:.0f} s{warnings}", flush=True)


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
