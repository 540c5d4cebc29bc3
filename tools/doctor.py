"""Say in under a minute whether the machines are fit for a run, and what is wrong with them.

    python -m tools.doctor --directory results
    workflow/launch 2 -m tools.doctor
    srun or sbatch: workflow/launch --nodes N --cpus C GPUS -m tools.doctor

Alone it looks at this machine: a laptop, a login node. Behind the launcher it runs as the ranks of a training do, and
the first rank prints what all of them found. One line a check: ok, warning or FAIL. The exit code is 2 when one failed.
"""

import time
from pathlib import Path

from stages.lib import stage
from stages.lib.doctor import clocks, collectives, directory, gpus, host, meeting, network, nodes, room, slurm, versions
from stages.lib.doctor.examine import Examination
from stages.lib.doctor.findings import FAIL, WARNING
from stages.lib.errors import RankLocalError, UserError

CHECKS = (nodes, versions, gpus, host, directory, room, clocks, network, collectives, slurm)


def run(arguments):
    """Do the checks and print their findings. Raises UserError when one failed."""
    check_options(arguments)
    begun = time.monotonic()
    examination = Examination(meeting.join(), arguments)
    examination.gather_hosts(meeting.JOIN_SECONDS)
    for check in CHECKS:
        for finding in examination.examine(check):
            print(finding, flush=True)
    if examination.meeting.rank == 0:
        conclude(examination, time.monotonic() - begun)


def conclude(examination, seconds):
    """Print the summary. Raises UserError when a check failed."""
    failed = [finding.name for finding in examination.findings if finding.level == FAIL]
    warned = [finding.name for finding in examination.findings if finding.level == WARNING]
    doubts = f"; {_count(warned, 'warning')} ({', '.join(warned)})" if warned else ""
    if failed:
        text = f"not fit for a run: {_count(failed, 'check')} failed ({', '.join(failed)}){doubts}"
        raise (RankLocalError if examination.absent else UserError)(text)  # the absent must be ended
    print(f"fit for a run: {_count(examination.findings, 'check')} in {seconds:.0f} s{doubts}", flush=True)


def _count(things, name):
    return f"{len(things)} {name}{'' if len(things) == 1 else 's'}"


def check_options(arguments):
    """Raise UserError where an option cannot be meant."""
    if arguments.directory.exists() and not arguments.directory.is_dir():
        raise UserError(f"--directory must be a directory, got the file {arguments.directory}")
    if arguments.need is not None and not arguments.need > 0:
        raise UserError(f"--need must be a number of GB above 0, got {arguments.need:g}")
    for name in ("partition", "account"):
        if getattr(arguments, name) == "":
            raise UserError(f"--{name} must be a name of Slurm's, got nothing")


def main(argv=None):
    """The command line."""
    parser = stage.parser("tools.doctor", __doc__)
    parser.add_argument(
        "--directory", type=Path, default=Path("results"), metavar="DIR", help="where runs write (default: results)"
    )
    parser.add_argument("--need", type=float, metavar="GB", help="room that the run needs there (10^9 bytes)")
    parser.add_argument("--slurm", action="store_true", help="fail where there is no Slurm")
    parser.add_argument("--partition", metavar="NAME", help="of Slurm: must exist")
    parser.add_argument("--account", metavar="NAME", help="of Slurm: must be one of yours")
    return stage.execute(parser, run, argv)


if __name__ == "__main__":
    stage.leave(main())
