"""The ledger of a pretraining: which samples each step had. Corpus and recipe say what it must be."""

from dataclasses import dataclass

import numpy as np

from stages.lib import files, history, journal
from stages.lib.corpus import Corpus
from stages.lib.errors import UserError
from stages.lib.loader import Samples

SEED = 0
"""The recipe's default: a checkpoint leaves out what the user did."""

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
    corpus, recipe = Corpus(corpus_path), commit["recipe"]
    check_digest("--corpus", corpus_path, corpus.digest, commit["corpus"], directory)
    return Samples(corpus, recipe["weights"], recipe["seq_len"], recipe.get("seed", SEED))


@dataclass(frozen=True)
class Ledger:
    """`steps`: {step: (first sample, end)}, of each step the last that counts.

    `passed`: the ranges of samples that rewinds left out. `faults`: sentences on what is not as it must be.
    """

    steps: dict
    passed: list
    faults: list


def read(directory, global_batch):
    """The Ledger of a run directory: each step once, each beginning where the one before ended."""
    events = journal.read(directory / "events.jsonl")
    passed = [tuple(event["samples"]) for event in events if event["event"] == "rewind"]
    steps, faults = {}, []
    for entry in history.entries(directory, events):
        if "samples" in entry:
            samples, step = tuple(entry["samples"]), entry["step"]
            # a killed training takes steps again: with the samples of before
            if steps.setdefault(step, samples) != samples:
                faults.append(f"step {step} was taken twice, with samples {_shown(steps[step])} and {_shown(samples)}")
                steps[step] = samples
    return Ledger(steps, passed, faults + list(_breaks(steps, passed, global_batch)))


def _breaks(steps, passed, global_batch):
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
        if after - first != global_batch:
            yield f"step {step} has {after - first:,} samples, and the recipe says {global_batch:,}"
        end, last = after, step


def _shown(samples):
    return f"{samples[0]:,} to {samples[1]:,}"


def visits(samples, ranges):
    """How often each window of each source and epoch was visited: {(source, epoch): int array [windows]}.

    `ranges`: of global sample numbers, [(first, end)].
    """
    found = {}
    for first, end in ranges:
        for begin in range(first, end, CHUNK):
            located = samples.locate(np.arange(begin, min(end, begin + CHUNK), dtype=np.int64))
            for source, epoch in set(zip(located[0].tolist(), located[1].tolist(), strict=True)):
                windows = located[2][(located[0] == source) & (located[1] == epoch)]
                key = samples.mixture.sources[source], epoch
                counts = found.setdefault(key, np.zeros(int(samples.windows[source]), dtype=np.uint8))
                np.add.at(counts, windows, 1)
    return found
