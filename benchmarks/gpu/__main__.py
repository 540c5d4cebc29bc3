"""Check and measure training on one GPU, in less than 20 minutes: `make gpu`.

    python -m benchmarks.gpu                          # all, in the order of GROUPS, as far as 20 minutes reach
    python -m benchmarks.gpu --groups speed --minutes 10
    python -m benchmarks.gpu --prepare                # corpus and plans, on a machine without a GPU: copy --work along
    python -m benchmarks.gpu --groups ceilings speed --only ceilings 8b --output 8b.json    # where minutes are few
    python -m benchmarks.gpu --dry                    # a small part of each group, on the CPU: a smoke test
    python -m benchmarks.gpu --groups peers --peer "torchtitan=python titan.py --shape 8b"

Correctness trains a tiny model 40 steps in each mode of training on the GPU, and compares its losses with the same
training on the CPU; a killed and resumed training must have equal bits. Parity compares float8 with bfloat16, and CUDA
graphs with the same training without them. Ceilings are the card's copy bandwidth and matrix rate. Speed takes training
steps of 1 and 8 billion parameters over a small grid, those that fit the card by their plan, and profiles one of each.
Peers are transformers, at its own settings and at ours, if it is installed, and those whose command --peer gives.
Pretraining is the stage at both sizes: the cost of data and checkpoints, and equal bits after a kill. No step needs a
network. A step has a time limit and one line of result; one that fails does not stop the others. --work keeps the
corpus, the runs and the log of each step; --output has all figures, and is written after each step.
"""

import argparse
import sys
from pathlib import Path

from benchmarks.gpu import ceilings, correctness, parity, peers, pretraining, speed
from benchmarks.gpu.session import Session, check_gpu, memory_of_gpu
from stages.lib.errors import UserError

GROUPS = {
    "correctness": correctness.steps,
    "parity": parity.steps,
    "ceilings": ceilings.steps,
    "speed": speed.steps,
    "peers": peers.steps,
    "pretraining": pretraining.steps,
}
"""{group: function from a session to its steps}, in order of value"""


def main(argv=None):
    """Run the command line; return its exit code: 1 if a step failed, 2 if this machine is not ready."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", nargs="+", choices=GROUPS, default=list(GROUPS), metavar="GROUP")
    parser.add_argument("--only", nargs="+", metavar="TEXT", help="the steps whose name has one of these texts")
    parser.add_argument("--minutes", type=float, default=20, help="steps begin only before (default: 20)")
    parser.add_argument("--work", type=Path, default=Path("gpu_work"), help="corpus, runs and logs (default: gpu_work)")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/gpu.json"))
    parser.add_argument("--dry", action="store_true", help="a small part of each group, on the CPU")
    parser.add_argument("--prepare", action="store_true", help="make corpus and plans in --work, and end")
    parser.add_argument(
        "--peer", action="append", default=[], metavar="NAME=COMMAND", help="a further one, see benchmarks/gpu/peers.py"
    )
    arguments = parser.parse_args(argv)
    only = arguments.only or [""]
    try:
        others = peers.named(arguments.peer)
        device = None if arguments.dry or arguments.prepare else check_gpu()
        session = Session(arguments.work, arguments.output, arguments.minutes, arguments.dry, device, others)
        if device is not None and "speed" in arguments.groups:
            speed.check_memory(session, memory_of_gpu())
    except (UserError, OSError) as error:
        print(f"gpu: {error}", file=sys.stderr)
        return 2
    if arguments.prepare:
        session.run([correctness.corpus_step(session, is_elsewhere=True), speed.plans_step(session)])
    else:
        for group in arguments.groups:
            session.run(step for step in GROUPS[group](session) if any(text in step.name for text in only))
        if not session.found:
            print(f"gpu: no step of {', '.join(arguments.groups)} has {' or '.join(only)} in its name", file=sys.stderr)
            return 2
    return session.end()


if __name__ == "__main__":
    sys.exit(main())
