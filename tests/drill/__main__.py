"""The crash drill: kill a training repeatedly at random moments, and compare it with an undisturbed one.

    python -m tests.drill --kills 20 --ranks 2 --seed 0
    python -m tests.drill --kills 10 --worlds 1 2 3 4
    python -m tests.drill --architecture qwen3
    python -m tests.drill --optimizer muon

Without --worlds every start has the same ranks, and the final weights, every loss and the ledger of samples must be
bit-identical. With --worlds each start has another world size, micro-batch and sharding, in float64: the ledger must be
the same, and losses within 1e-9. Prints a table, and exits with 1 if something differs; the directory is then kept.
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
from tests.helpers.training import MODELS

SHOWN = 10  # faults that are printed; there may be one per step


def main(argv=None):
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser("python -m tests.drill", description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=20, help="number of disturbances (20)")
    parser.add_argument("--ranks", type=int, default=2, help="ranks of the undisturbed run (2)")
    parser.add_argument("--worlds", type=int, nargs="+", default=(), metavar="RANKS", help="ranks of the others")
    parser.add_argument(
        "--kinds", nargs="+", choices=KINDS, default=tuple(KINDS), metavar="KIND", help=", ".join(KINDS)
    )
    parser.add_argument("--architecture", choices=MODELS, default="llama", help=f"{', '.join(MODELS)} (llama)")
    parser.add_argument("--optimizer", choices=("adamw", "muon"), default="adamw", help="adamw, muon (adamw)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the moments and the order of kinds (0)")
    parser.add_argument("--directory", type=Path, help="working directory (a temporary one)")
    arguments = vars(parser.parse_args(argv))
    given = arguments.pop("directory")
    directory = given or Path(tempfile.mkdtemp(prefix="caravan-drill-"))
    code = run(Plan(directory=directory.resolve(), **arguments))
    if code:
        print(f"the runs are in {directory}")
    elif given is None:
        shutil.rmtree(directory)
    return code


def run(plan):
    """Run a drill and print its findings; returns the exit code."""
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
