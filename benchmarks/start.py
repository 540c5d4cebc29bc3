"""Time from the start of a training's process to the end of its first step: a new run, and one that resumes.

    python -m benchmarks.start                       # about 3 minutes on 2 cores
    python -m benchmarks.start --megabytes 8         # a smoke test

A new run is a tiny model on one process and on two. A run that resumes loads a checkpoint of about a gigabyte (float32
weights and AdamW's moments); the time of its first step itself is not counted. Beside it stands a read of the
checkpoint's files in order. All take turns, so that other load on the machine slows all equally; files are in the page
cache.
"""

import subprocess
import tempfile
import time
from pathlib import Path

from benchmarks import harness
from benchmarks.convert import write_corpus
from stages.lib.run_directory import journal

BYTES_PER_PARAMETER = 12
VOCABULARY = 2000
TINY = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 96}


def model_of(megabytes):
    """Return the keys of a model whose checkpoint has about this size: layers of width 1,024."""
    layer = 4 * 1024 * 1024 + 3 * 1024 * 2816
    layers = max(1, round(megabytes * 1e6 / BYTES_PER_PARAMETER / layer))
    if megabytes < layer * BYTES_PER_PARAMETER / 1e6:
        return TINY
    shape = {"hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 2816}
    return shape | {"num_hidden_layers": layers}


def train(corpus, place, model, until, ranks):
    """Train until a step; return (seconds until the end of the last step taken, its own seconds)."""
    recipe = {"model": model, "weights": {"texts": 1}, "seq_len": 32, "global_batch_size": 2, "dtype": "float32"}
    operation = {"steps": 1000, "micro_batch_size": 1, "validation": {"every": 1000, "tokens": 320}}
    words = harness.training_words(corpus, place, recipe, operation, until)
    command = harness.launched(ranks, harness.stage("pretrain", *words))
    begun = time.time()
    subprocess.run(command, env=harness.environment(OMP_NUM_THREADS="1"), check=True, capture_output=True)
    (directory,) = (place / "train").iterdir()
    steps = journal.read(directory / "metrics.jsonl", lambda entry: "loss" in entry)
    first = next(entry for entry in steps if entry["time"] > begun)
    return first["time"] - begun, first["seconds"], directory


def read(directory):
    """Return the seconds in which the files of the newest checkpoint are read, and their bytes."""
    checkpoint = sorted((directory / "checkpoints").iterdir())[-1]
    begun, total = time.perf_counter(), 0
    for path in sorted(checkpoint.glob("*.distcp")):
        with open(path, "rb", buffering=0) as file:
            while chunk := file.read(1 << 24):
                total += len(chunk)
    return time.perf_counter() - begun, total


def turn(corpus, arguments, large, until):
    """Return the figures of one turn. `large`: the directory of the large model, trained one step more to `until`."""
    figures = {}
    for ranks in (1, 2):
        with tempfile.TemporaryDirectory() as place:
            figures[f"new run, {ranks} process{'es' * (ranks > 1)}"] = train(corpus, Path(place), TINY, 1, ranks)[0]
    seconds, step, directory = train(corpus, large, model_of(arguments.megabytes), until, 1)
    if until > 1:
        figures["resume"] = seconds - step
        figures["read"], figures["bytes"] = read(directory)
    return figures


def main():
    """Measure, and write the JSON file."""
    parser = harness.parser_of(__doc__, "start")
    parser.add_argument("--megabytes", type=float, default=1000, help="size of the checkpoint (default: 1000)")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="caravan-start-") as scratch:
        work = Path(scratch)
        corpus = write_corpus(work / "corpus", 1, VOCABULARY)
        large = work / "large"
        large.mkdir()
        turn(corpus, arguments, large, 1)  # it makes the checkpoint
        turns = [turn(corpus, arguments, large, until) for until in range(2, arguments.repeats + 2)]
    medians = harness.medians(turns)
    for name, value in medians.items():
        print(f"{name}: {value:,.2f}")
    harness.write(arguments.output, "start", ("torch",), {"medians": medians, "turns": turns})


if __name__ == "__main__":
    main()
