"""A dry look at text: at a source before it is tokenized, at a corpus, or at what was in a step of a training.

    python -m tools.inspect --recipe '{"kind": "jsonl", "paths": ["texts/"]}'
    python -m tools.inspect --source results/sources/web/list.json --tokenizer results/tokenizers/main/manifest.json

shows files, fields, documents, lengths, and what would be left out and why, by a sample of a source. A recipe needs no
list: it is tried before it goes into a config.

    python -m tools.inspect --corpus results/tokens/main/manifest.json \\
        --tokenizer results/tokenizers/main/manifest.json

shows what each source has, and by a sample of its documents whether BOS and EOS stand where they must.

    python -m tools.inspect --corpus results/tokens/main/manifest.json \\
        --tokenizer results/tokenizers/main/manifest.json --run results/runs/base/train/0123456789abcdef --step 1200

shows for each sample of a step its source, epoch, place in the source's stream, and text. A step is what metrics.jsonl
says of it last: a training that was rewound wrote some steps twice.
"""

import sys
from pathlib import Path

from stages.lib import manifest, recipe, stage
from stages.lib.errors import UserError
from stages.lib.sources import source
from stages.lib.tokenizer.tokenizer import Tokenizer

STEP, CORPUS, SOURCE = "step", "corpus", "source"
LEAST = {"samples": 1, "documents": 0, "sample_mb": 1}
DEFAULTS = {STEP: {"samples": 8}, CORPUS: {"documents": 3}, SOURCE: {"documents": 3, "sample_mb": 12}}
"""The numbers that each look reads."""


def run(arguments):
    """Print the look that was asked for."""
    look = look_of(arguments)
    set_numbers(arguments, look)
    {STEP: look_at_step, CORPUS: look_at_corpus, SOURCE: look_at_source}[look](arguments)


def look_of(arguments):
    """Which look is asked for. Raises UserError unless the options are those of one."""
    given = [name for name in ("source", "recipe", "corpus") if getattr(arguments, name) is not None]
    if len(given) != 1:
        got = " and ".join(f"--{name}" for name in given) or "none of them"
        raise UserError(f"one of --source, --recipe and --corpus must say what to look at, got {got}")
    if (arguments.run is None) != (arguments.step is None):
        missing, there = ("run", "step") if arguments.run is None else ("step", "run")
        raise UserError(f"--{missing} must be given with --{there}: a step is one of a run")
    if arguments.corpus is None:
        if arguments.run is not None:
            raise UserError(f"--run must be given with the --corpus that it was trained on, got --{given[0]}")
        return SOURCE
    if arguments.tokenizer is None:
        raise UserError("--tokenizer must be given with --corpus: the manifest of its tokenizer")
    return CORPUS if arguments.run is None else STEP


def set_numbers(arguments, look):
    """Set the numbers that were left out. Raises UserError for one that is too small, or that the look has not."""
    for name, least in LEAST.items():
        value, option = getattr(arguments, name), f"--{name.replace('_', '-')}"
        if value is None:
            setattr(arguments, name, DEFAULTS[look].get(name))
        elif name not in DEFAULTS[look]:
            raise UserError(f"{option} must be left out of the look at a {look}")
        elif value < least:
            raise UserError(f"{option} must be at least {least}, got {value}")


def look_at_source(arguments):
    """Print the look at a source, by its list or by a recipe alone."""
    from stages.lib.inspection import source_look

    if arguments.recipe is not None:
        name = "recipe"
        plan = recipe.load_texts(source.SourceRecipe, [arguments.recipe], name)
        found = source.list_files(name, plan)
        files = [{"name": file, "bytes": status.bytes} for file, status in found.items()]
    else:
        listed, name, plan = source.read_list(arguments.source)
        files = listed.identity["files"]
    tokenizer = None if arguments.tokenizer is None else Tokenizer(arguments.tokenizer)
    at_most = arguments.sample_mb * 1_000_000
    source_look.show(name, plan, files, tokenizer, arguments.documents, at_most, arguments.source)


def look_at_corpus(arguments):
    """Print the look at a corpus."""
    from stages.lib.inspection import corpus_look

    if "sources" not in manifest.read(arguments.corpus).identity:
        raise UserError(f"--corpus {arguments.corpus} must be the manifest of a corpus, and is another")
    corpus_look.show(arguments.corpus, Tokenizer(arguments.tokenizer), arguments.documents)


def look_at_step(arguments):
    """Print the samples of a step."""
    from stages.lib.inspection import step_look

    tokenizer = Tokenizer(arguments.tokenizer)
    step_look.show(arguments.corpus, tokenizer, arguments.run, arguments.step, arguments.samples)


def main(argv=None):
    """Run the stage; returns its exit code."""
    parser = stage.parser("tools.inspect", __doc__)
    parser.add_argument("--source", type=Path, metavar="LIST", help="look at a source: its list, by stages.list")
    parser.add_argument("--recipe", metavar="JSON|FILE", help="look at a source: its recipe, as for stages.list")
    parser.add_argument("--corpus", type=Path, metavar="MANIFEST", help="look at a corpus; with --run, at a step of it")
    parser.add_argument("--tokenizer", type=Path, metavar="MANIFEST", help="the corpus' own, or one to try on a source")
    parser.add_argument("--run", type=Path, metavar="DIRECTORY", help="run directory, TRAIN_DIR/<digest>")
    parser.add_argument("--step", type=int, help="the step of the run, as metrics.jsonl counts")
    parser.add_argument("--documents", type=int, metavar="N", help="of a source or a side that are shown; default: 3")
    parser.add_argument("--sample-mb", type=int, metavar="MB", help="of a source that are read, about; default: 12")
    parser.add_argument("--samples", type=int, metavar="K", help="of a step that are shown; default: 8")
    sys.stdout.reconfigure(errors="backslashreplace")  # text has characters that not every terminal has
    return stage.execute(parser, run, argv)


if __name__ == "__main__":
    sys.exit(main())
