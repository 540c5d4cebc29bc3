"""Prove which data a pretraining had: every window of text once an epoch, none lost, none twice.

    python -m stages.replay_ledger --corpus results/tokens/main/manifest.json \\
        --run results/runs/base/train/0123456789abcdef

The order of the samples is computed anew, from the corpus' manifest and the recipe alone, and held against the ledger
that the training kept step by step (metrics.jsonl): of a finished run, of one that was killed any number of times, on
any number of ranks. The exit code is 2 where something differs.
"""

import sys
from pathlib import Path

from stages.lib import ledger, stage
from stages.lib.errors import UserError

SHOWN = 20


def run(arguments):
    """Print what was found. Raises UserError where the ledger is not what it must be."""
    commit = ledger.commit_of(arguments.run)
    samples = ledger.samples_of(arguments.corpus, commit, arguments.run)
    kept = ledger.read(arguments.run, commit["recipe"]["global_batch"])
    if not kept.steps:
        raise UserError(f"--run {arguments.run} must have taken a step, and its metrics.jsonl has none")
    print(f"{len(kept.steps):,} steps of {commit['recipe']['global_batch']:,} samples, up to step {max(kept.steps):,}")
    for first, end in kept.passed:
        print(f"samples {first:,} to {end:,} were passed by: a rewind left them out")
    ranges = merged(kept.steps.values())
    whole = ranges[0][0] == 0 and not kept.passed
    faults = kept.faults + list(_replay(samples, ranges, whole))
    for fault in faults[:SHOWN]:
        print(f"WRONG {fault}")
    if faults:
        raise UserError(f"the ledger of {arguments.run} is not what corpus and recipe say, in {len(faults)} places")
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


def _replay(samples, ranges, whole):
    """Print what each epoch of each source gave, and yield sentences on what was seen twice or lost.

    `whole`: whether the run began at the first sample and left none out, so that each epoch but the last is complete.
    """
    visits = ledger.visits(samples, ranges)
    for (source, epoch), counts in sorted(visits.items()):
        seen, twice = int((counts > 0).sum()), int((counts > 1).sum())
        print(f"{source}, epoch {epoch + 1}: {seen:,} of {len(counts):,} windows of {samples.seq_len:,} tokens")
        if twice:
            yield f"{source}, epoch {epoch + 1}: {twice:,} windows were seen more than once"
        if whole and (source, epoch + 1) in visits and seen < len(counts):
            yield f"{source}, epoch {epoch + 1}: {len(counts) - seen:,} windows were lost"


def main(argv=None):
    """The command line."""
    parser = stage.parser("replay_ledger", __doc__)
    parser.add_argument("--corpus", type=Path, required=True, help="manifest of the corpus of the run")
    parser.add_argument("--run", type=Path, required=True, metavar="DIR", help="run directory")
    return stage.execute(parser, run, argv)


if __name__ == "__main__":
    sys.exit(main())
