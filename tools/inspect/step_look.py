"""The samples of a training step: source, epoch, position in the source's stream, and text of each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stages.lib.errors import UserError
from stages.lib.run_directory.events import read_events
from stages.lib.tokens import ledger
from tools.inspect.terminal import CONTROLS

if TYPE_CHECKING:
    from stages.lib.tokenizer.tokenizer import Tokenizer
    from stages.lib.tokens.loader import Samples


def show(corpus: Path, tokenizer: Tokenizer, directory: Path, step: int, count: int) -> None:
    """Print up to `count` samples of a step of the run in `directory`; `corpus`: the path of its manifest.

    Raises UserError if the step does not exist, or the run has another corpus or tokenizer.
    """
    entry = ledger_entry(directory, step)
    commit = ledger.commit_of(directory)
    ledger.check_digest("--tokenizer", tokenizer.manifest.path, tokenizer.digest, commit["tokenizer"], directory)
    samples = ledger.samples_of(corpus, commit, directory)
    first, end = entry["samples"]
    loss = "no finite loss" if entry["loss"] is None else f"loss {entry['loss']:.4f}"
    skipped = ", skipped" if entry.get("skipped") else ""
    print(f"step {entry['step']:,}: samples {first:,} to {end - 1:,}, {loss}{skipped}")
    for number in range(first, min(end, first + count)):
        print_sample(samples, number, tokenizer)
    if end - first > count:
        print(f"{end - first - count:,} more samples; --samples {end - first} shows all")


def ledger_entry(directory: Path, step: int) -> dict[str, Any]:
    """Return the last entry of metrics.jsonl on a training step. Raises UserError if it does not exist."""
    path = directory / "metrics.jsonl"
    if not path.exists():
        raise UserError(f"--run {directory} must be a run directory with metrics.jsonl, which is missing")
    entries = ledger.last_entries(directory, read_events(directory))
    if step not in entries:
        known = f"{min(entries)} to {max(entries)}" if entries else "none"
        raise UserError(f"--step must be a step of {path} ({known}), got {step}")
    return entries[step]


def print_sample(samples: Samples, number: int, tokenizer: Tokenizer) -> None:
    """Print the position and the text of a sample as it was trained on.

    The end of a document, and what a special token of fill-in-the-middle stands before, are lines of their own.
    """
    (source,), (epoch,), (row,) = samples.locate(np.array([number]))
    segments = samples.layouts[source].segments(int(epoch), np.array([row]))
    unit = samples.layouts[source].row_name
    ranges = list(zip(segments.starts.tolist(), segments.counts.tolist(), strict=True))
    positions = [f"{begin:,} to {begin + count - 1:,}" for begin, count in ranges]
    print(
        f"\nsample {number:,}: source {samples.mixture.sources[source]}, epoch {epoch:,}, {unit} {row:,}, "
        f"tokens {', '.join(positions)}"
    )
    (tokens,) = samples.read(np.array([number]))  # not the stream's, which fill-in-the-middle permutes
    sentinels = {id_: name for name, id_ in (tokenizer.fill_in_the_middle or {}).items()}
    for place, count in zip(segments.places.tolist(), segments.counts.tolist(), strict=True):
        ids = tokens[place : place + count]
        cuts = [np.flatnonzero(ids == tokenizer.eos) + 1, np.flatnonzero(np.isin(ids, [*sentinels]))]
        for segment in np.split(ids, np.sort(np.concatenate(cuts))):
            sentinel = sentinels.get(int(segment[0])) if len(segment) else None
            if sentinel is not None:
                print(f"  +-- {sentinel}")
            text = segment if sentinel is None else segment[1:]
            if len(text):
                print_segment(text, tokenizer.eos, tokenizer.decode)


def print_segment(ids: np.ndarray, eos: int, decode: Callable[[list[int]], str]) -> None:
    """Print a segment of a document."""
    for line in decode(ids.tolist()).split("\n"):
        print(f"  | {line.translate(CONTROLS)}")
    if eos in ids:
        print("  +-- end of the document")
