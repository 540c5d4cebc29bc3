"""Which text was in a step of a training: for each sample its source, epoch, place in the source's stream, and text.

    python -m stages.inspect --corpus results/tokens/main/manifest.json \\
        --tokenizer results/tokenizers/main/manifest.json --run results/runs/base/train/0123456789abcdef --step 1200

A step is what metrics.jsonl says of it last: a training that was rewound wrote some steps twice.
"""

import sys
from pathlib import Path

import numpy as np

from stages.lib import journal, ledger, stage
from stages.lib.errors import UserError
from stages.lib.tokenizer import PACKAGE, Tokenizer

CONTROLS = {number: f"\\x{number:02x}" for number in (*range(9), *range(10, 32), *range(127, 160))}
"""What a terminal would obey, and how it is shown."""


def run(arguments):
    """Print the samples of the step."""
    if arguments.samples < 1:
        raise UserError(f"--samples must be at least 1, got {arguments.samples}")
    entry = ledger_entry(arguments.run, arguments.step)
    commit = ledger.commit_of(arguments.run)
    tokenizer = Tokenizer(arguments.tokenizer)
    ledger.check_digest("--tokenizer", arguments.tokenizer, tokenizer.digest, commit["tokenizer"], arguments.run)
    samples = ledger.samples_of(arguments.corpus, commit, arguments.run)
    decode = decoder_of(tokenizer)
    first, end = entry["samples"]
    print(_head(entry))
    for number in range(first, min(end, first + arguments.samples)):
        print_sample(samples, number, tokenizer.eos, decode)
    if end - first > arguments.samples:
        print(f"{end - first - arguments.samples:,} more samples; --samples {end - first} shows all")


def ledger_entry(directory, step):
    """The last entry of metrics.jsonl on a training step. Raises UserError where there is none."""
    path = directory / "metrics.jsonl"
    if not path.exists():
        raise UserError(f"--run {directory} must be a run directory, and has no metrics.jsonl")
    entries = {entry["step"]: entry for entry in journal.read(path) if "samples" in entry}
    if step not in entries:
        there = f"it has steps {min(entries)} to {max(entries)}" if entries else "it has none"
        raise UserError(f"--step must be a step of {path}, got {step}; {there}")
    return entries[step]


def decoder_of(tokenizer):
    """A function from ids to their text, the special tokens among them left out."""
    import tokenizers

    package = tokenizers.Tokenizer.from_file(str(tokenizer.manifest.directory / PACKAGE[0]))
    return package.decode


def _head(entry):
    first, end = entry["samples"]
    loss = "no finite loss" if entry["loss"] is None else f"loss {entry['loss']:.4f}"
    skipped = ", skipped" if entry.get("skipped") else ""
    return f"step {entry['step']:,}: samples {first:,} to {end - 1:,}, {loss}{skipped}"


def print_sample(samples, number, eos, decode):
    """Print where a sample comes from, and its text; the end of a document is a line of its own."""
    (source,), (epoch,), (window,) = samples.locate(np.array([number]))
    begin = int(window) * samples.seq_len
    ids = samples.streams[source].read(begin, samples.seq_len + 1)
    print(
        f"\nsample {number:,}: source {samples.mixture.sources[source]}, epoch {epoch:,}, window {window:,}, "
        f"tokens {begin:,} to {begin + samples.seq_len:,}"
    )
    for piece in np.split(ids, np.flatnonzero(ids == eos) + 1):
        for line in decode(piece.tolist()).split("\n"):
            print(f"  | {line.translate(CONTROLS)}")
        if eos in piece:
            print("  +-- end of the document")


def main(argv=None):
    """Run the stage; returns its exit code."""
    parser = stage.parser("inspect", __doc__)
    parser.add_argument("--corpus", type=Path, required=True, help="manifest of the corpus that was trained on")
    parser.add_argument("--tokenizer", type=Path, required=True, help="manifest of its tokenizer")
    parser.add_argument(
        "--run", type=Path, required=True, metavar="DIRECTORY", help="run directory, TRAIN_DIR/<digest>"
    )
    parser.add_argument("--step", type=int, required=True, help="the step, as metrics.jsonl counts")
    parser.add_argument("--samples", type=int, default=8, metavar="K", help="show so many of its samples; default: 8")
    sys.stdout.reconfigure(errors="backslashreplace")  # text has characters that not every terminal has
    return stage.execute(parser, run, argv)


if __name__ == "__main__":
    sys.exit(main())
