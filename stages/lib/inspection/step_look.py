"""The look at a step of a training: for each sample its source, epoch, place in the source's stream, and text."""

import numpy as np

from stages.lib.errors import UserError
from stages.lib.inspection.terminal import CONTROLS
from stages.lib.run_directory import journal
from stages.lib.tokens import ledger
from stages.lib.tokens.loader import CHUNK


def show(corpus, tokenizer, directory, step, count):
    """Print up to `count` samples of a step of the run in `directory`; `corpus`: the path of its manifest.

    Raises UserError where there is no such step, or the run is of another corpus or tokenizer.
    """
    entry = ledger_entry(directory, step)
    commit = ledger.commit_of(directory)
    ledger.check_digest("--tokenizer", tokenizer.manifest.path, tokenizer.digest, commit["tokenizer"], directory)
    samples = ledger.samples_of(corpus, commit, directory)
    first, end = entry["samples"]
    print(_head(entry))
    for number in range(first, min(end, first + count)):
        print_sample(samples, number, tokenizer.eos, tokenizer.decode)
    if end - first > count:
        print(f"{end - first - count:,} more samples; --samples {end - first} shows all")


def ledger_entry(directory, step):
    """The last entry of metrics.jsonl on a training step. Raises UserError where there is none."""
    path = directory / "metrics.jsonl"
    if not path.exists():
        raise UserError(f"--run {directory} must be a run directory, and has no metrics.jsonl")
    entries = ledger.last_entries(directory, journal.read(directory / "events.jsonl"))
    if step not in entries:
        there = f"it has steps {min(entries)} to {max(entries)}" if entries else "it has none"
        raise UserError(f"--step must be a step of {path}, got {step}; {there}")
    return entries[step]


def _head(entry):
    first, end = entry["samples"]
    loss = "no finite loss" if entry["loss"] is None else f"loss {entry['loss']:.4f}"
    skipped = ", skipped" if entry.get("skipped") else ""
    return f"step {entry['step']:,}: samples {first:,} to {end - 1:,}, {loss}{skipped}"


def print_sample(samples, number, eos, decode):
    """Print where a sample comes from, and its text; the end of a document is a line of its own."""
    (source,), (epoch,), (row,) = samples.locate(np.array([number]))
    pieces = samples.layouts[source].pieces(int(epoch), np.array([row]))
    kind = "window" if samples.packing == CHUNK else "row"
    places = [f"{begin:,} to {begin + count - 1:,}" for begin, count in zip(pieces.starts, pieces.counts, strict=True)]
    print(
        f"\nsample {number:,}: source {samples.mixture.sources[source]}, epoch {epoch:,}, {kind} {row:,}, "
        f"tokens {', '.join(places)}"
    )
    for begin, count in zip(pieces.starts.tolist(), pieces.counts.tolist(), strict=True):
        ids = samples.streams[source].read(begin, count)
        for piece in np.split(ids, np.flatnonzero(ids == eos) + 1):
            if len(piece):
                print_piece(piece, eos, decode)


def print_piece(ids, eos, decode):
    """Print a piece of a document."""
    for line in decode(ids.tolist()).split("\n"):
        print(f"  | {line.translate(CONTROLS)}")
    if eos in ids:
        print("  +-- end of the document")
