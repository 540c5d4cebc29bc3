"""The ledger of a pretraining: the samples of each step. Corpus and recipe determine what it must be."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from stages.lib import files
from stages.lib.errors import UserError
from stages.lib.run_directory import history
from stages.lib.run_directory.events import read_events
from stages.lib.tokens import loader
from stages.lib.tokens.corpus import Corpus
from stages.lib.tokens.document_rows import DocumentRows
from stages.lib.tokens.loader import Order, Samples

AT_ONCE = 1 << 20  # samples that are located, or rows that are laid out, at once
MAX_VISITS = 255  # visits of a row are counted up to this number: one byte per row


def commit_of(directory: Path, tuned: bool = False) -> dict[str, Any]:
    """Return the commit.json of the run's newest checkpoint: recipe, corpus and tokenizer are the same in all.

    Raises UserError if the run has no checkpoint, or is not a pretraining (a fine-tuning if `tuned`).
    """
    for path in sorted((directory / "checkpoints").glob("[0-9]*/commit.json"), reverse=True):
        commit = files.read_json_object(path)
        if ("tuned_on" in commit) != tuned:
            kinds = ("a fine-tuning", "a pretraining")
            raise UserError(f"--run {directory} must be {kinds[not tuned]}, and {path} is of {kinds[tuned]}")
        return commit
    raise UserError(f"--run {directory} holds no checkpoint, which would store the recipe")


def check_digest(option: str, path: Path, found: str, expected: str, directory: Path) -> None:
    """Raise UserError if the input that an option names is not the one with which a run was trained."""
    if found != expected:
        raise UserError(
            f"{option} {path} must be what {directory} was trained with (digest {expected[:16]}), "
            f"got digest {found[:16]}"
        )


def samples_of(corpus_path: Path, commit: Mapping[str, Any], directory: Path) -> Samples:
    """Return the Samples of a run by its corpus and the commit of `commit_of`. Raises UserError for another corpus."""
    corpus = Corpus(corpus_path)
    check_digest("--corpus", corpus_path, corpus.digest, commit["corpus"], directory)
    return loader.from_commit(commit).samples(corpus)


@dataclass(frozen=True)
class Ledger:
    """The samples of each step of a run.

    `steps`: {step: (first sample, end)} by the last valid entry of each step. `skipped`: ranges of samples that
    rollbacks skipped. `faults`: sentences on what is wrong.
    """

    steps: dict[int, tuple[int, int]]
    skipped: list[tuple[int, int]]
    faults: list[str]


def last_entries(directory: Path, events: Sequence[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Return {step: its last entry in metrics.jsonl} of the steps that no rollback took back."""
    return {entry["step"]: entry for entry in history.entries(directory, events) if "samples" in entry}


def check_chain(directories: Sequence[Path], commits: Sequence[Mapping[str, Any]], samples: Samples) -> None:
    """Raise UserError if a run does not continue the one before it, in the order of `samples`, the last run's."""
    last = loader.from_commit(commits[-1])
    for directory, commit, following in zip(directories, commits, commits[1:], strict=False):
        before, begin = loader.from_commit(commit), loader.from_commit(following).begin or 0
        other = last.difference(before, samples.corpus)
        if other is None and _until(begin, before) != _until(begin, last):
            other = "history of weights"
        if other is None and not begin:
            other = "end than the first sample of that run, whose data was reset"
        if other is not None:
            raise UserError(f"--run {directory} is not the run that the next one continues: its {other} differs")


def _until(sample: int, of_run: Order) -> list[Any]:
    return [entry for entry in of_run.history if entry[0] < sample]


def read(directory: Path, global_batch_size: int, begin: int | None = None, end: int | None = None) -> Ledger:
    """Read the Ledger of a run directory: each step once, each beginning where the one before ended.

    `begin`: the sample at which the first step must begin, None if unknown. `end`: steps from this sample on do not
    count, None if all do.
    """
    events = read_events(directory)
    skipped = [tuple(event["samples"]) for event in events if event["event"] == "rollback"]
    skipped = [samples for samples in skipped if end is None or samples[0] < end]
    steps: dict[int, tuple[int, int]] = {}
    faults = []
    for entry in history.entries(directory, events):
        if "samples" in entry and (end is None or entry["samples"][0] < end):
            samples, step = tuple(entry["samples"]), entry["step"]
            # a killed training repeats steps, with the same samples
            if steps.setdefault(step, samples) != samples:
                faults.append(f"step {step} was taken twice, with samples {_shown(steps[step])} and {_shown(samples)}")
                steps[step] = samples
    if begin is not None and 1 in steps and steps[1][0] != begin and (begin, steps[1][0]) not in skipped:
        faults.append(f"step 1 begins at sample {steps[1][0]:,}, and the run at sample {begin:,}")
    last = max(steps, default=0)
    if end is not None and steps and steps[last][1] != end:
        faults.append(f"step {last} ends at sample {steps[last][1]:,}, and the next run begins at sample {end:,}")
    return Ledger(steps, skipped, faults + list(_breaks(steps, skipped, global_batch_size)))


def _breaks(
    steps: Mapping[int, tuple[int, int]], skipped: Sequence[tuple[int, int]], global_batch_size: int
) -> Iterator[str]:
    """Yield sentences on steps that are missing, of another size, or do not begin where the one before ended."""
    end, last = None, min(steps, default=1) - 1
    if last > 0:
        yield f"the first step is {last + 1}: the steps before it are missing in metrics.jsonl"
    for step in sorted(steps):
        first, after = steps[step]
        if step != last + 1:
            yield f"steps {last + 1} to {step - 1} are missing"
        elif end is not None and first != end and (end, first) not in skipped:
            yield f"step {step} begins at sample {first:,}, and the step before ended at {end:,}"
        if after - first != global_batch_size:
            yield f"step {step} has {after - first:,} samples, and global_batch_size is {global_batch_size:,}"
        end, last = after, step


def _shown(samples: tuple[int, int]) -> str:
    return f"{samples[0]:,} to {samples[1]:,}"


class LocatedSamples(Protocol):
    """Samples whose sources and rows are known: of a pretraining or a fine-tuning."""

    mixture: Any
    rows: np.ndarray

    def locate(self, samples: np.ndarray, /) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return (source number, epoch, row) of each global sample number."""


def visits(samples: LocatedSamples, ranges: Iterable[tuple[int, int]]) -> dict[tuple[str, int], np.ndarray]:
    """Count the visits of each row, up to MAX_VISITS: {(source, epoch): uint8 array [rows]}.

    `ranges`: of global sample numbers, [(first, end)].
    """
    found: dict[tuple[str, int], np.ndarray] = {}
    for first, end in ranges:
        for begin in range(first, end, AT_ONCE):
            located = samples.locate(np.arange(begin, min(end, begin + AT_ONCE), dtype=np.int64))
            for source, epoch in set(zip(located[0].tolist(), located[1].tolist(), strict=True)):
                chosen = located[2][(located[0] == source) & (located[1] == epoch)]
                key = samples.mixture.sources[source], epoch
                counts = found.setdefault(key, np.zeros(int(samples.rows[source]), dtype=np.uint8))
                rows, times = np.unique(chosen, return_counts=True)
                counts[rows] = np.minimum(counts[rows] + times, MAX_VISITS)
    return found


def faults_of_documents(samples: Samples, source: str, epoch: int) -> Iterator[str]:
    """Yield sentences on tokens that were not a target once in all rows of an epoch of a source of packed documents.

    The targets follow from the documents' boundaries in the shards: each token of a document but its first. It takes
    50 bytes per document.
    """
    layout = samples.layouts[samples.mixture.sources.index(source)]
    assert isinstance(layout, DocumentRows)
    bounds = [bounds for _, bounds in layout.documents.all()]
    begins, ends = (np.concatenate([part[side] for part in bounds]) for side in (slice(-1), slice(1, None)))
    begins, ends = begins[ends > begins], ends[ends > begins]
    found = []
    for first in range(0, layout.rows, AT_ONCE):
        segments = layout.segments(epoch, np.arange(first, min(layout.rows, first + AT_ONCE)))
        documents = np.searchsorted(begins, segments.starts, side="right") - 1
        outside = int((segments.starts + segments.counts > ends[documents]).sum())
        if outside:
            yield f"{source}, epoch {epoch + 1}: {outside:,} segments cross the end of a document"
        follows = (segments.places > 0) & (not segments.closed)
        found.append((np.maximum(segments.starts + ~follows, begins[documents] + 1), segments.starts + segments.counts))
    firsts, lasts = (np.concatenate(side) for side in zip(*found, strict=True))
    some = np.flatnonzero(lasts > firsts)
    turn = some[np.argsort(firsts[some])]
    firsts, lasts = firsts[turn], lasts[turn]
    twice = int(np.maximum(lasts[:-1] - firsts[1:], 0).sum())
    lost = int((ends - begins - 1).sum() - (lasts - firsts).sum()) + twice
    for count, said in ((twice, "were targets more than once"), (lost, "were lost")):
        if count:
            yield f"{source}, epoch {epoch + 1}: {count:,} tokens of documents {said}"
