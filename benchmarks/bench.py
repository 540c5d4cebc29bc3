"""The benchmarks of this machine, one after the other, and the table of their figures: `make bench`.

    python -m benchmarks.bench                         # about an hour on 2 idle cores
    python -m benchmarks.bench --only start workflow   # some of them

Each benchmark measures ours and its peers in turns, and keeps its raw results in benchmarks/results. The figures are
written into the pages, as by `python -m benchmarks.figures`, and their table is printed. A benchmark that fails is
named, and does not stop the others; the exit code is then 1. Peers that are not installed are left out.
`ladder`, `ladder_past_plateau`, `optimizers` and `learning` train for an hour or more each and stand by themselves;
`resume` wants an environment per peer.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

from benchmarks import figures

HOME = Path(__file__).resolve().parents[1]
BENCHMARKS = {
    "workflow": [],
    "start": [],
    "save": ["--repeats", "5"],
    "convert": ["--repeats", "5"],
    "loader": [],
    "train_cpu": [],
    "tokenize": ["--megabytes", "105"],
    "evaluate": [],
    "plan": [],
    "lora": [],
    "contamination": [],
}
"""{benchmark: options}; evaluate reads the results of `make demo`"""


def run(name):
    """Run one benchmark; return whether it succeeded."""
    begun = time.monotonic()
    command = [sys.executable, "-m", f"benchmarks.{name}", *BENCHMARKS[name]]
    print(f"{name}: {' '.join(command[1:])}", flush=True)
    succeeded = subprocess.run(command, cwd=HOME, check=False).returncode == 0
    print(f"{name}: {'done' if succeeded else 'FAILED'}, {time.monotonic() - begun:.0f} s", flush=True)
    return succeeded


def main(argv=None):
    """Run the command line; return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS, default=list(BENCHMARKS), metavar="NAME")
    arguments = parser.parse_args(argv)
    failed = [name for name in arguments.only if not run(name)]
    print("\n".join(figures.table()))
    failed += ["figures"] if figures.main([]) else []
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
