"""The benchmarks of this machine, one after the other, and the table of their figures: `make bench`.

    python -m benchmarks.bench                         # about an hour on 2 idle cores
    python -m benchmarks.bench --only start workflow   # some of them
    python -m benchmarks.bench --table                 # the table alone, from the results that exist

Each benchmark measures ours and its peers in turns, and keeps its raw results in benchmarks/results. The table is
printed, and written into benchmarks/README.md. A benchmark that fails is named, and does not stop the others; the exit
code is then 1. Peers that are not installed are left out. `benchmarks.ladder` and `benchmarks.optimizers` train for an
hour each and stand by themselves.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

from benchmarks import figures

HOME = Path(__file__).resolve().parents[1]
README = HOME / "benchmarks/README.md"
BEGIN, END = "<!-- written by benchmarks.bench -->", "<!-- end -->"
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


def write_table():
    """Write the table into the README, between its marks."""
    text = README.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    lines = "\n".join(figures.table())
    README.write_text(f"{before}{BEGIN}\n{lines}\n{END}{after}", encoding="utf-8")
    print(lines)


def main(argv=None):
    """Run the command line; return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS, default=list(BENCHMARKS), metavar="NAME")
    parser.add_argument("--table", action="store_true", help="write the table alone")
    arguments = parser.parse_args(argv)
    failed = [] if arguments.table else [name for name in arguments.only if not run(name)]
    write_table()
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
