"""Preview a source before it is tokenized, a corpus, its near duplicates, or the samples of a training step.

    python -m tools.inspect --recipe '{"kind": "jsonl", "paths": ["texts/"]}'
    python -m tools.inspect --source results/sources/web/list.json --tokenizer results/tokenizers/main/manifest.json

prints files, fields, documents, lengths, malformed records and filtered documents of a sample of a source. A recipe
needs no list, so it can be tried before it goes into a config.

    python -m tools.inspect --source results/sources/web/list.json --filters
    python -m tools.inspect --source results/sources/web/list.json --filters '{"gopher_quality": {"min_stop_words": 1}}'

prints for each rule of the source's filters, or of those that are given in their place, how many documents and bytes of
a sample it would remove, and examples with what was measured.

    python -m tools.inspect --corpus results/tokens/main/manifest.json \\
        --tokenizer results/tokenizers/main/manifest.json

prints the size of each source, and checks BOS and EOS in a sample of its documents.

    python -m tools.inspect --corpus results/tokens/main/manifest.json \\
        --tokenizer results/tokenizers/main/manifest.json --run results/runs/base/train/0123456789abcdef --step 1200

prints for each sample of a step its source, epoch, position in the source's stream, and text. A step's entry is its
last one in metrics.jsonl: training that was resumed or rolled back wrote some steps twice.

    python -m tools.inspect --duplicates results/near_duplicates/main/manifest.json --documents 10

prints how many documents were removed for documents of which source, and pairs of a removed document and the one that
stays for it, side by side. Run it where the workflow runs: the texts are read again.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from stages.lib import recipe, stage
from stages.lib.errors import UserError
from stages.lib.manifest_types import ListedFile
from stages.lib.sources import filters, source
from stages.lib.tokenizer.tokenizer import Tokenizer

STEP, CORPUS, SOURCE, DUPLICATES = "step", "corpus", "source", "duplicates"
MINIMUMS = {"samples": 1, "documents": 0, "sample_mb": 1}
DEFAULTS = {
    STEP: {"samples": 8},
    CORPUS: {"documents": 3},
    SOURCE: {"documents": 3, "sample_mb": 12},
    DUPLICATES: {"documents": 3},
}
"""The numbers that each preview reads."""


def run(arguments: argparse.Namespace) -> None:
    """Print the preview."""
    from tools.inspect import corpus_look, duplicates_look, step_look

    subject = subject_of(arguments)
    set_numbers(arguments, subject)
    if subject == SOURCE:
        inspect_source(arguments)
    elif subject == DUPLICATES:
        duplicates_look.show(arguments.duplicates, arguments.documents)
    elif subject == CORPUS:
        corpus_look.show(arguments.corpus, Tokenizer(arguments.tokenizer), arguments.documents)
    else:
        tokenizer = Tokenizer(arguments.tokenizer)
        step_look.show(arguments.corpus, tokenizer, arguments.run, arguments.step, arguments.samples)


def subject_of(arguments: argparse.Namespace) -> str:
    """Return STEP, CORPUS or SOURCE. Raises UserError unless the options are those of one."""
    given = [name for name in ("source", "recipe", "corpus", "duplicates") if getattr(arguments, name) is not None]
    if len(given) != 1:
        got = " and ".join(f"--{name}" for name in given) or "none of them"
        raise UserError(f"exactly one of --source, --recipe, --corpus and --duplicates must be given, got {got}")
    if (arguments.run is None) != (arguments.step is None):
        missing, present = ("run", "step") if arguments.run is None else ("step", "run")
        raise UserError(f"--{missing} must be given with --{present}: a step belongs to a run")
    if arguments.classifier is not None and given[0] not in ("source", "recipe"):
        raise UserError(f"--classifier must be given with --source or --recipe, got --{given[0]}")
    if arguments.corpus is None:
        if arguments.run is not None:
            raise UserError(f"--run must be given with the --corpus of the run, got --{given[0]}")
        if arguments.filters is not None and arguments.tokenizer is not None:
            raise UserError("--tokenizer must be left out with --filters: filters read text")
        return SOURCE if arguments.duplicates is None else DUPLICATES
    if arguments.filters is not None:
        raise UserError("--filters must be given with --source or --recipe: a corpus is filtered already")
    if arguments.tokenizer is None:
        raise UserError("--tokenizer must be given with --corpus: the manifest of its tokenizer")
    return CORPUS if arguments.run is None else STEP


def set_numbers(arguments: argparse.Namespace, subject: str) -> None:
    """Set the defaults of numbers. Raises UserError for a number that is too small, or is not one of the preview's."""
    for name, minimum in MINIMUMS.items():
        value, option = getattr(arguments, name), f"--{name.replace('_', '-')}"
        if value is None:
            setattr(arguments, name, DEFAULTS[subject].get(name))
        elif name not in DEFAULTS[subject]:
            raise UserError(f"{option} must be left out for a {subject}")
        elif value < minimum:
            raise UserError(f"{option} must be at least {minimum}, got {value}")


def inspect_source(arguments: argparse.Namespace) -> None:
    """Print the preview of a source, by its list or by a recipe alone."""
    from tools.inspect import filter_look, source_look

    left_out: Counter[str] = Counter()
    if arguments.recipe is not None:
        name = "recipe"
        source_recipe = recipe.load_texts(source.SourceRecipe, [arguments.recipe], name)
        statuses = source.list_files(name, source_recipe, left_out)
        files: list[ListedFile] = [{"name": file, "bytes": status.bytes} for file, status in statuses.items()]
    else:
        listed, name, source_recipe = source.read_list(arguments.source)
        files = listed.identity["files"]
        with contextlib.suppress(UserError):  # the files may be gone, or elsewhere: the list is shown
            source.list_files(name, source_recipe, left_out)
    if arguments.filters is not None:
        source_recipe = filter_look.recipe_with(source_recipe, f"sources.{name}", arguments.filters)
    source_recipe = filter_look.with_classifier(source_recipe, arguments.classifier, arguments.source)
    filters.prepare(source_recipe.filters)
    if arguments.filters is not None:
        filter_look.show(name, source_recipe, files, arguments.documents, arguments.sample_mb * 1_000_000)
        return
    tokenizer = None if arguments.tokenizer is None else Tokenizer(arguments.tokenizer)
    at_most = arguments.sample_mb * 1_000_000
    source_look.show(name, source_recipe, files, tokenizer, arguments.documents, at_most, arguments.source, left_out)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool; return its exit code."""
    parser = stage.parser("tools.inspect", __doc__)
    parser.add_argument("--source", type=Path, metavar="LIST", help="list of a source, made by stages.list")
    parser.add_argument("--recipe", metavar="JSON|FILE", help="recipe of a source, as of stages.list")
    parser.add_argument(
        "--filters",
        nargs="?",
        const="",
        metavar="JSON|FILE",
        help="show what filters remove: those of the source, or these in their place",
    )
    parser.add_argument(
        "--classifier",
        type=Path,
        metavar="MANIFEST",
        help="the classifier of filters.quality; default: the one beside the list of the source",
    )
    parser.add_argument("--corpus", type=Path, metavar="MANIFEST", help="corpus; with --run, the corpus of the run")
    parser.add_argument("--duplicates", type=Path, metavar="MANIFEST", help="manifest of stages.verify_duplicates")
    parser.add_argument(
        "--tokenizer", type=Path, metavar="MANIFEST", help="the corpus' tokenizer, or one to try on a source"
    )
    parser.add_argument("--run", type=Path, metavar="DIRECTORY", help="run directory, TRAIN_DIR/<digest>")
    parser.add_argument("--step", type=int, help="step of the run, as in metrics.jsonl")
    parser.add_argument(
        "--documents",
        type=int,
        metavar="N",
        help="documents to show of a source, a split or a rule of --filters, or pairs of duplicates; default: 3",
    )
    parser.add_argument("--sample-mb", type=int, metavar="MB", help="megabytes to read of a source, about; default: 12")
    parser.add_argument("--samples", type=int, metavar="K", help="samples of a step to show; default: 8")
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr] # text has characters that not every terminal has
    return stage.execute(parser, run, argv)


if __name__ == "__main__":
    stage.leave(main())
