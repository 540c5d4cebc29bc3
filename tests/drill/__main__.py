"""The crash drill: kill a training again and again at random moments, and compare it with one that nothing disturbed.

    python -m tests.drill --kills 20 --ranks 2 --seed 0
    python -m tests.drill --kills 10 --worlds 1 2 3 4

Without --worlds every start has the same ranks, and the final weights, every loss and the ledger of samples must be
bit-identical. With it each start has another world size, micro-batch and sharding, in float64: the ledger must be the
same, and losses within 1e-9. Ends with a table, and with exit code 1 where something differs; the directory then stays.
"""

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from tests.drill.drill import Drill, Plan
from tests.drill.kinds import KINDS
from tests.drill.processes import Fault
from tests.drill.verdict import Verdict

SHOWN = 10  # faults, of what may be one for each step


def main(argv=None):
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser("python -m tests.drill", description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=20, help="how often the training is disturbed (20)")
    parser.add_argument("--ranks", type=int, default=2, help="ranks of the undisturbed run (2)")
    parser.add_argument("--worlds", type=int, nargs="+", default=(), metavar="RANKS", help="ranks of the others")
    parser.add_argument(
        "--kinds", nargs="+", choices=KINDS, default=tuple(KINDS), metavar="KIND", help=", ".join(KINDS)
    )
    parser.add_argument("--seed", type=int, default=0, help="of the moments and the order of kinds (0)")
    parser.add_argument("--directory", type=Path, help="where all is made (a temporary one)")
    arguments = vars(parser.parse_args(argv))
    given = arguments.pop("directory")
    directory = given or Path(tempfile.mkdtemp(prefix="caravan-drill-"))
    code = run(Plan(directory=directory.resolve(), **arguments))
    if code:
        print(f"what was made is in {directory}")
    elif given is None:
        shutil.rmtree(directory)
    return code


def run(plan):
    """Do a drill and print what it found; returns the exit code."""
    drill = Drill(plan, say=lambda line: print(line, flush=True))
    try:
        drill.run()
    except Fault as fault:
        print(f"FAULT: {fault}")
        return 1
    verdict = Verdict(drill)
    faults = verdict.faults()
    print(verdict.table())
    for line in [f"FAULT: {fault}" for fault in faults[:SHOWN]] or verdict.sentences():
        print(line)
    if len(faults) > SHOWN:
        print(f"and {len(faults) - SHOWN} more")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
