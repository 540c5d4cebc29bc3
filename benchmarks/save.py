"""Seconds that training waits for a checkpoint: synchronous beside asynchronous saves.

    python -m benchmarks.save                  # 1.2 GB of state, about 2 minutes on 2 cores
    python -m benchmarks.save --megabytes 8    # seconds: a smoke test

Both kinds save the same state in turns, in one process. A stall is the time until training may change its weights.
Matrix products between two saves stand for training, so that an asynchronous write has ended before the next save. The
first save of each kind is not counted: it allocates memory.
"""

import tempfile
import time
from pathlib import Path

import torch

from benchmarks import harness
from stages.lib.checkpoints.manager import AsyncCheckpointer
from stages.lib.distributed.process_group import process_group

KINDS = ("synchronous", "asynchronous")


def state_of(megabytes):
    """Return weights and AdamW's first and second moments, float32, in matrices of at most 16 MB."""
    rows = min(4096, megabytes * 256 // 3)
    matrices = max(1, round(megabytes / 3 / (rows * 1024 * 4 / 2**20)))
    kinds = ("weight", "exp_avg", "exp_avg_sq")
    return {kind: {f"{number:04d}": torch.randn(rows, 1024) for number in range(matrices)} for kind in kinds}


def measure(checkpointer, state, directory, compute_seconds):
    """Return {"stall": seconds until `save` returned, "written": seconds until the checkpoint was committed}."""
    written = []
    begun = time.perf_counter()
    checkpointer.save(directory, state, {"step": 0}, None, written.append)
    stall = time.perf_counter() - begun
    until, matrix = time.perf_counter() + compute_seconds, torch.randn(512, 512)
    while time.perf_counter() < until:
        matrix = torch.nn.functional.normalize(matrix @ matrix)
    checkpointer.wait()
    return {"stall": stall, "written": written[0]}


def main():
    """Measure, and write the JSON file."""
    parser = harness.parser_of(__doc__, "save")
    parser.add_argument("--megabytes", type=int, default=1200, help="size of the state")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--directory", type=Path, help="directory of the checkpoints (default: a temporary directory)")
    arguments = parser.parse_args()
    with process_group(), tempfile.TemporaryDirectory(dir=arguments.directory) as scratch:
        state = state_of(arguments.megabytes)
        savers = {kind: AsyncCheckpointer(kind == "asynchronous") for kind in KINDS}
        for checkpointer in savers.values():
            checkpointer.prepare(state)
        turns = []
        for _ in range(arguments.repeats + 1):
            turn, pause = {}, 0.0
            for kind, checkpointer in savers.items():
                turn[kind] = measure(checkpointer, state, Path(scratch) / "checkpoint", pause)
                pause = turn[kind]["written"]
                print("{:13} stalls {stall:6.2f} s, written after {written:6.2f} s".format(kind, **turn[kind]))
            turns.append(turn)
        turns = turns[1:]
        medians = {kind: of_kind["stall"] for kind, of_kind in harness.medians(turns).items()}
        figures = {
            "state_bytes": sum(t.numel() * t.element_size() for kind in state.values() for t in kind.values()),
            "median_stall": medians,
            "ratio": medians["asynchronous"] / medians["synchronous"],
            "turns": turns,
        }
        print(f"an asynchronous save stalls {figures['ratio']:.1%} of a synchronous one")
        harness.write(arguments.output, "save", ("torch",), figures)


if __name__ == "__main__":
    main()
