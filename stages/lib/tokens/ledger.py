"""The ledger of a pretraining: which samples each step had. Corpus and recipe say what it must be."""

from dataclasses import dataclass

import numpy as np

from stages.lib import files
from stages.lib.errors import UserError
from stages.lib.run_directory import history, journal
from stages.lib.tokens import order
from stages.lib.tokens.corpus import Corpus

CHUNK = 1 << 20  # samples that are located at once


def commit_of(directory):
    """What a checkpoint of the run says of recipe, corpus and tokenizer; they are the same in all. Raises UserError."""
    for path in sorted((directory / "checkpoints").glob("[0-9]*/commit.json"), reverse=True):
        commit = files.read_json(path)
        if "weights" not in commit["recipe"]:
            raise UserError(f"--run {directory} must be a pretraining, and {path} names no weights of sources")
        return commit
    raise UserError(f"--run {directory} must hold a checkpoint, which says by which recipe it was trained")


def check_digest(option, path, found, wanted, directory):
    """Raise UserError where what an option names is not what a run was trained with."""
    if found != wanted:
        raise UserError(
            f"{option} {path} must be what {directory} was trained with (digest {wanted[:16]}), got digest {found[:16]}"
        )


def samples_of(corpus_path, commit, directory):
    """The `Samples` of a run, from its corpus and what `commit_of` gave. Raises UserError for another corpus."""
    corpus = Corpus(corpus_path)
    check_digest("--corpus", corpus_path, corpus.digest, commit["corpus"], directory)
    return order.of_commit(commit).samples(corpus)


@dataclass(frozen=True)
class Ledger:
    """`steps`: {step: (first sample, end)}, of each step the last that counts.

    `passed`: the ranges of samples that rollbacks left out. `faults`: sentences on what is not as it must be.
    """

    steps: dict
    passed: list
    faults: list


def last_entries(directory, events):
    """{step: what metrics.jsonl says of it last}, of the steps that a rollback did not take back."""
    return {entry["step"]: entry for entry in history.entries(directory, events) if "samples" in entry}


def check_chain(directories, commits, samples):
    """Raise UserError where a run does not go on from the one before it, in the order of `samples`, the last run's."""
    last = order.of_commit(commits[-1])
    for directory, commit, following in zip(directories, commits, commits[1:], strict=False):
        before, begin = order.of_commit(commit), order.of_commit(following).begin or 0
        other = last.difference(before, samples.corpus)
        if other is None and _until(begin, before) != _until(begin, last):
            other = "history of weights"
        if other is None and not begin:
            other = "end than its first sample, since its data was reset"
        if other is not None:
            raise UserError(f"--run {directory} must be what the run behind it goes on from, and has another {other}")


def _until(sample, wanted):
    return [entry for entry in wanted.history if entry[0] < sample]


def read(directory, global_batch_size, begin=None, end=None):
    """The Ledger of a run directory: each step once, each beginning where the one before ended.

    `begin`: the sample that the first step must begin at, None where nobody knows. `end`: steps from this sample on do
    not count, None where all do.
    """
    events = journal.read(directory / "events.jsonl")
    passed = [tuple(event["samples"]) for event in events if event["event"] == "rollback"]
    passed = [samples for samples in passed if end is None or samples[0] < end]
    steps, faults = {}, []
    for entry in history.entries(directory, events):
        if "samples" in entry and (end is None or entry["samples"][0] < end):
            samples, step = tuple(entry["samples"]), entry["step"]
            # a killed training takes steps again: with the samples of before
            if steps.setdefault(step, samples) != samples:
                faults.append(f"step {step} was taken twice, with samples {_shown(steps[step])} and {_shown(samples)}")
                steps[step] = samples
    if begin is not None and 1 in steps and steps[1][0] != begin and (begin, steps[1][0]) not in passed:
        faults.append(f"step 1 begins at sample {steps[1][0]:,}, and the run at {begin:,}")
    last = max(steps, default=0)
    if end is not None and steps and steps[last][1] != end:
        faults.append(f"step {last} ends at sample {steps[last][1]:,}, and the run behind begins at {end:,}")
    return Ledger(steps, passed, faults + list(_breaks(steps, passed, global_batch_size)))


def _breaks(steps, passed, global_batch_size):
    """Sentences on steps that are missing, too small, or begin elsewhere than the one before ended."""
    end, last = None, min(steps, default=1) - 1
    if last > 0:
        yield f"the first step is {last + 1}: those before it are not in metrics.jsonl"
    for step in sorted(steps):
        first, after = steps[step]
        if step != last + 1:
            yield f"steps {last + 1} to {step - 1} are missing"
        elif end is not None and first != end and (end, first) not in passed:
            yield f"step {step} begins at sample {first:,}, and the step before ended at {end:,}"
        if after - first != global_batch_size:
            yield f"step {step} has {after - first:,} samples, and the recipe says {global_batch_size:,}"
        end, last = after, step


def _shown(samples):
    return f"{samples[0]:,} to {samples[1]:,}"


MOST = 255  # visits that are told apart: a byte a row


def visits(samples, ranges):
    """How often each row of each source and epoch was visited, up to MOST: {(source, epoch): uint8 array [rows]}.

    `ranges`: of global sample numbers, [(first, end)].
    """
    found = {}
    for first, end in ranges:
        for begin in range(first, end, CHUNK):
            located = samples.locate(np.arange(begin, min(end, begin + CHUNK), dtype=np.int64))
            for source, epoch in set(zip(located[0].tolist(), located[1].tolist(), strict=True)):
                chosen = located[2][(located[0] == source) & (located[1] == epoch)]
                key = samples.mixture.sources[source], epoch
                counts = found.setdefault(key, np.zeros(int(samples.rows[source]), dtype=np.uint8))
                rows, times = np.unique(chosen, return_counts=True)
                counts[rows] = np.minimum(counts[rows] + times, MOST)
    return found


def faults_of_documents(samples, source, epoch):
    """Sentences on tokens that were not a target once, over all rows of an epoch of a source of packed documents.

    What must be one follows from the documents' places in the shards: each token of a document but its first. It takes
    50 bytes a document.
    """
    layout = samples.layouts[samples.mixture.sources.index(source)]
    bounds = [bounds for _, bounds in layout.documents.all()]
    begins, ends = (np.concatenate([part[side] for part in bounds]) for side in (slice(-1), slice(1, None)))
    begins, ends = begins[ends > begins], ends[ends > begins]
    found = []
    for first in range(0, layout.rows, CHUNK):
        segments = layout.segments(epoch, np.arange(first, min(layout.rows, first + CHUNK)))
        documents = np.searchsorted(begins, segments.starts, side="right") - 1
        outside = int((segments.starts + segments.counts > ends[documents]).sum())
        if outside:
            yield f"{source}, epoch {epoch + 1}: {outside:,} pieces go over the end of a document"
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
