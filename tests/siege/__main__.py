"""The siege: attack each stage with kills, damaged files, full disks, little memory and bad command lines.

    python -m tests.siege --minutes 10 --seed 0 --raw siege.jsonl

The chain of stages runs once undisturbed on tiny texts. Each attempt copies its results, takes away those of one stage,
and attacks that stage. A fault is a traceback, a refusal of more than one line, a result that differs from the
undisturbed one, or something left behind. Prints a table, and exits with 1 if there was a fault. --raw keeps a line of
JSON per attempt.
"""

import argparse
import collections
import importlib
import json
import math
import os
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.siege import chain
from tests.siege.attacks import ATTACKS
from tests.siege.place import Place

STAGES = tuple(dict.fromkeys(step.stage for step in chain.steps()))
PRELOADED = ("transformers", "lm_eval", "matplotlib.pyplot", *(f"stages.{stage}" for stage in STAGES))


def main(argv=None):
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser("python -m tests.siege", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10, help="time of all attempts (10)")
    parser.add_argument("--attempts", type=float, default=math.inf, help="end after so many attempts")
    parser.add_argument("--seed", type=int, default=0, help="seed of the attempts (0)")
    parser.add_argument(
        "--kinds", nargs="+", choices=ATTACKS, default=tuple(ATTACKS), metavar="KIND", help=", ".join(ATTACKS)
    )
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=STAGES, metavar="STAGE", help=", ".join(STAGES))
    parser.add_argument("--raw", type=Path, help="file for a line of JSON per attempt")
    arguments = parser.parse_args(argv)
    for name in PRELOADED:
        importlib.import_module(name)
    with tempfile.TemporaryDirectory(prefix="caravan-siege-") as directory:
        made = Siege(arguments, Path(directory).resolve())
        made.run()
    print(made.table())
    return 1 if made.faults else 0


class Siege:
    """All attempts: the number of attacks on each stage in each way, and the faults."""

    def __init__(self, arguments, directory):
        self.arguments, self.directory = arguments, directory
        self.rng = random.Random(arguments.seed)
        self.attempts, self.faults = collections.Counter(), collections.Counter()

    def run(self):
        """Run the chain, then attack its stages until the time is up."""
        finished = Place.finished(self.directory / "finished" / "place")
        steps = [step for step in chain.steps() if step.stage in self.arguments.stages]
        until = time.monotonic() + 60 * self.arguments.minutes
        with open(self.arguments.raw or os.devnull, "w", encoding="utf-8") as raw:
            while time.monotonic() < until and self.attempts.total() < self.arguments.attempts:
                self._attempt(finished, self.rng.choice(self.arguments.kinds), self.rng.choice(steps), raw)

    def _attempt(self, finished, kind, step, raw):
        scratch = self.directory / "attacked" / "place"
        scratch.parent.mkdir(exist_ok=True)
        done, ended, fault = ATTACKS[kind](finished, scratch, step, self.rng)
        self.attempts[kind, step.stage] += 1
        if fault:
            self.faults[kind, step.stage] += 1
            print(f"FAULT: {step.stage}, {done}: {fault}: {ended.last_line[:300]}", flush=True)
        entry = {"kind": kind, "stage": step.stage, "done": done, "code": ended.code, "fault": fault}
        entry |= {"seconds": round(ended.seconds, 2), "said": ended.text[-500:]}
        print(json.dumps(entry), file=raw, flush=True)

    def table(self):
        """Return the numbers of attempts and faults per kind and stage, as text."""
        lines = [f"{'kind':<14} {'stage':<16} {'attempts':>8} {'faults':>6}"]
        for kind, stage in sorted(self.attempts):
            lines.append(f"{kind:<14} {stage:<16} {self.attempts[kind, stage]:>8} {self.faults[kind, stage]:>6}")
        lines.append(f"{'all':<31} {self.attempts.total():>8} {self.faults.total():>6}")
        return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
