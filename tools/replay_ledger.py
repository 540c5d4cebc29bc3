"""Verify the data of a pretraining: every row of text once per epoch, none lost, none twice.

    python -m tools.replay_ledger --corpus results/tokens/main/manifest.json \\
        --run results/runs/base/train/0123456789abcdef

The order of the samples is computed again, from the corpus' manifest and the recipe alone, and compared with the ledger
that the training wrote at each step (metrics.jsonl): of a finished run, or of one that was killed any number of times,
on any number of ranks. If documents are packed, each complete epoch is compared with the documents as well: every token
that must be a target was one, once. The exit code is 2 if something differs.

Of a fine-tuning, every row of examples is counted in the same way; its sources and tokenizer are needed, too:

    python -m tools.replay_ledger --corpus results/tokens/main/manifest.json \\
        --tokenizer results/tokenizers/main/manifest.json --sources results/sources/statements/list.json \\
        --run results/runs/statements/train/0123456789abcdef

A run that continues another's checkpoint with `initial.data: continue` is verified together with it: `--run BASE RUN`,
in the order in which they were trained. The steps of BASE after that checkpoint do not count.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from stages.lib import stage
from stages.lib.errors import UserError
from stages.lib.tokens import ledger, loader
from stages.lib.tokens.loader import Samples

if TYPE_CHECKING:
    from stages.lib.tokens.packing import Layout
    from stages.lib.tuning.tuning_samples import MixedSamples, RowLayout


SHOWN = 20


def run(arguments: argparse.Namespace) -> None:
    """Print the findings. Raises UserError if the ledger is wrong."""
    commits = [ledger.commit_of(directory, arguments.sources is not None) for directory in arguments.run]
    samples: Samples | MixedSamples[Any]
    begins: list[int | None] = [0]  # the first sample of each run; a fine-tuning continues no other
    if arguments.sources:
        samples = _samples_of_tuning(arguments, commits)
    else:
        samples = ledger.samples_of(arguments.corpus, commits[-1], arguments.run[-1])
        ledger.check_chain(arguments.run, commits, samples)
        begins = [loader.from_commit(commit).begin for commit in commits]
    ranges: list[tuple[int, int]] = []
    faults: list[str] = []
    skipped: list[tuple[int, int]] = []
    for directory, commit, begin, end in zip(arguments.run, commits, begins, [*begins[1:], None], strict=True):
        taken = ledger.read(directory, commit["recipe"]["global_batch_size"], begin, end)
        if not taken.steps:
            raise UserError(f"--run {directory} has no step in its metrics.jsonl: it must have taken one")
        print(
            f"{len(taken.steps):,} steps of {commit['recipe']['global_batch_size']:,} samples, up to step "
            f"{max(taken.steps):,}"
        )
        ranges += taken.steps.values()
        faults += taken.faults
        skipped += taken.skipped
    for first, after in skipped:
        print(f"samples {first:,} to {after:,} were skipped by a rollback")
    if isinstance(samples, Samples) and samples.permutation is not None:
        print(
            f"fill_in_the_middle permuted {samples.permutation.recipe.rate:.0%} of the fragments of "
            f"{', '.join(samples.permuted_sources)}, each without its last 3 tokens"
        )
    faults += replay(samples, merged(ranges), whole=min(ranges)[0] == 0 and not skipped)
    for fault in faults[:SHOWN]:
        print(f"WRONG {fault}")
    if faults:
        raise UserError(f"the ledger of {arguments.run[-1]} differs from corpus and recipe in {len(faults)} places")
    print("the ledger agrees with corpus and recipe: no sample lost, none twice")


def _samples_of_tuning(arguments: argparse.Namespace, commits: Sequence[Mapping[str, Any]]) -> MixedSamples[Any]:
    from stages.lib.chat.template import ChatTemplate
    from stages.lib.tokenizer.tokenizer import Tokenizer, special_tokens
    from stages.lib.tokens.corpus import Corpus
    from stages.lib.tuning import encoded_examples, tuning_samples, tuning_sources

    if len(commits) > 1 or arguments.tokenizer is None:
        raise UserError(f"--sources must come with --tokenizer and one --run, got {len(commits)} of --run")
    (directory,), (commit,) = arguments.run, commits
    # a checkpoint holds only the keys that the user wrote
    defaults = {"seed": 0, "template": None, "dpo": None, "loss_on": encoded_examples.ASSISTANT}
    defaults |= {"packing": tuning_samples.BEST_FIT, "too_long": tuning_samples.DROP}
    recipe = SimpleNamespace(**defaults | commit["recipe"])
    corpus, tokenizer = Corpus(arguments.corpus), Tokenizer(arguments.tokenizer)
    ledger.check_digest("--corpus", arguments.corpus, corpus.digest, commit["corpus"], directory)
    ledger.check_digest("--tokenizer", arguments.tokenizer, tokenizer.digest, commit["tokenizer"], directory)
    text = commit.get("template")
    template = None if text is None else ChatTemplate(text, special_tokens(tokenizer.manifest), "of the training")
    sources = tuning_sources.read(arguments.sources, recipe, template)
    for name, digest in sources.digests.items():
        ledger.check_digest("--sources", Path(name), digest, commit["tuned_on"][name], directory)
    return sources.data(tokenizer, corpus.tokenizer["bos_added"], recipe, validation_tokens=lambda _: 0).samples


def merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join ranges of samples that follow each other."""
    joined: list[tuple[int, int]] = []
    for first, end in sorted(ranges):
        if joined and joined[-1][1] == first:
            first, _ = joined.pop()  # noqa: PLW2901
        joined.append((first, end))
    return joined


def replay(samples: Samples | MixedSamples[Any], ranges: Iterable[tuple[int, int]], whole: bool) -> Iterator[str]:
    """Print the rows of each epoch of each source, and yield sentences on rows that were seen twice or lost.

    `whole`: whether the run began at the first sample and skipped none, so that each epoch but the last is complete.
    """
    visits = ledger.visits(samples, ranges)
    layouts: dict[str, Layout | RowLayout] = dict(zip(samples.mixture.sources, samples.layouts, strict=True))
    for (source, epoch), counts in sorted(visits.items()):
        layout = layouts[source]
        rows = f"{layout.row_name}s"
        seen, twice = int((counts > 0).sum()), int((counts > 1).sum())
        print(f"{source}, epoch {epoch + 1}: {seen:,} of {len(counts):,} {rows} of {samples.seq_len:,} tokens")
        if twice:
            yield f"{source}, epoch {epoch + 1}: {twice:,} {rows} were seen more than once"
        if whole and (source, epoch + 1) in visits and seen < len(counts):
            yield f"{source}, epoch {epoch + 1}: {len(counts) - seen:,} {rows} were lost"
        if layout.packs_documents and seen == len(counts):
            assert isinstance(samples, Samples)
            yield from ledger.faults_of_documents(samples, source, epoch)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = stage.parser("tools.replay_ledger", __doc__)
    parser.add_argument("--corpus", type=Path, required=True, help="manifest of the corpus of the last run")
    parser.add_argument("--sources", type=Path, nargs="+", metavar="LIST", help="lists of the sources of a fine-tuning")
    parser.add_argument("--tokenizer", type=Path, help="manifest of the tokenizer of a fine-tuning")
    parser.add_argument(
        "--run", type=Path, required=True, nargs="+", metavar="DIR", help="run directory, after those that it continues"
    )
    return stage.execute(parser, run, argv)


if __name__ == "__main__":
    stage.leave(main())
