"""Prove which data a pretraining had: every row of text once an epoch, none lost, none twice.

    python -m tools.replay_ledger --corpus results/tokens/main/manifest.json \\
        --run results/runs/base/train/0123456789abcdef

The order of the samples is computed anew, from the corpus' manifest and the recipe alone, and held against the ledger
that the training kept step by step (metrics.jsonl): of a finished run, of one that was killed any number of times, on
any number of ranks. Where documents are packed, each epoch that was gone through is held against the documents as well:
every token that must be a target was one, once. The exit code is 2 where something differs.

A run that goes on from another's checkpoint with `initial.data: continue` is proven together with it: `--run BASE RUN`,
in the order in which they were trained. Of BASE those steps count that RUN goes on from.
"""

import sys
from pathlib import Path

from stages.lib import stage
from stages.lib.errors import UserError
from stages.lib.tokens import ledger, order
from stages.lib.tokens.loader import CHUNK

SHOWN = 20


def run(arguments):
    """Print what was found. Raises UserError where the ledger is not what it must be."""
    commits = [ledger.commit_of(directory) for directory in arguments.run]
    samples = ledger.samples_of(arguments.corpus, commits[-1], arguments.run[-1])
    ledger.check_chain(arguments.run, commits, samples)
    begins = [order.of_commit(commit).begin for commit in commits]
    ranges, faults, passed = [], [], []
    for directory, commit, begin, end in zip(arguments.run, commits, begins, [*begins[1:], None], strict=True):
        kept = ledger.read(directory, commit["recipe"]["global_batch_size"], begin, end)
        if not kept.steps:
            raise UserError(f"--run {directory} must have taken a step, and its metrics.jsonl has none")
        print(
            f"{len(kept.steps):,} steps of {commit['recipe']['global_batch_size']:,} samples, up to step "
            f"{max(kept.steps):,}"
        )
        ranges += kept.steps.values()
        faults += kept.faults
        passed += kept.passed
    for first, end in passed:
        print(f"samples {first:,} to {end:,} were passed by: a rollback left them out")
    faults += replay(samples, merged(ranges), whole=min(ranges)[0] == 0 and not passed)
    for fault in faults[:SHOWN]:
        print(f"WRONG {fault}")
    if faults:
        raise UserError(f"the ledger of {arguments.run[-1]} is not what corpus and recipe say, in {len(faults)} places")
    print("the ledger is what corpus and recipe say: no sample lost, none twice")


def merged(ranges):
    """Ranges of samples, those that follow each other in one."""
    found = []
    for first, end in sorted(ranges):
        if found and found[-1][1] == first:
            found[-1] = (found[-1][0], end)
        else:
            found.append((first, end))
    return found


def replay(samples, ranges, whole):
    """Print what each epoch of each source gave, and yield sentences on what was seen twice or lost.

    `whole`: whether the run began at the first sample and left none out, so that each epoch but the last is complete.
    """
    visits = ledger.visits(samples, ranges)
    kind = "windows" if samples.packing == CHUNK else "rows"
    for (source, epoch), counts in sorted(visits.items()):
        seen, twice = int((counts > 0).sum()), int((counts > 1).sum())
        print(f"{source}, epoch {epoch + 1}: {seen:,} of {len(counts):,} {kind} of {samples.seq_len:,} tokens")
        if twice:
            yield f"{source}, epoch {epoch + 1}: {twice:,} {kind} were seen more than once"
        if whole and (source, epoch + 1) in visits and seen < len(counts):
            yield f"{source}, epoch {epoch + 1}: {len(counts) - seen:,} {kind} were lost"
        if kind == "rows" and seen == len(counts):
            yield from ledger.faults_of_documents(samples, source, epoch)


def main(argv=None):
    """The command line."""
    parser = stage.parser("tools.replay_ledger", __doc__)
    parser.add_argument("--corpus", type=Path, required=True, help="manifest of the corpus of the last run")
    parser.add_argument(
        "--run", type=Path, required=True, nargs="+", metavar="DIR", help="run directory, behind those it goes on from"
    )
    return stage.execute(parser, run, argv)


if __name__ == "__main__":
    sys.exit(main())
