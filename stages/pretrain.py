"""Pretrain a Llama up to a milestone, from the newest checkpoint of its run directory.

    python -m stages.pretrain --corpus results/tokens/main/manifest.json --until 300 --recipe recipe.json \\
        --operation '{"steps": 300}' --train-dir results/runs/base/train --output results/runs/base/models/00000300.json

On several ranks the same, behind torchrun: `workflow/launch 2 -m stages.pretrain ...`. The run directory is
TRAIN_DIR/<digest of recipe and corpus>; it holds checkpoints/, metrics.jsonl, events.jsonl and the lease. Start the
same command again after any kill: it goes on from the newest complete checkpoint. To really retrain, delete the
directory.
"""

from dataclasses import dataclass
from pathlib import Path

from stages.lib import parallel, recipe, stage
from stages.lib.corpus import Corpus
from stages.lib.errors import UserError
from stages.lib.loader import Samples
from stages.lib.model import ModelRecipe
from stages.lib.recipe import identity
from stages.lib.training import heldout
from stages.lib.training.initial import Initial, InitialRecipe
from stages.lib.training.recipe import TrainRecipe
from stages.lib.training.run import reach
from stages.lib.training.start import add_options


@dataclass(frozen=True, kw_only=True)
class PretrainRecipe(TrainRecipe):
    """A pretraining run."""

    model: ModelRecipe = identity()
    """The shape of the model."""

    weights: dict[str, float] = identity(above=0)
    """How much of the tokens each source gives, by its name; any positive numbers, rounded to 1/4096 of their sum."""

    document_mask: bool = identity(False)
    """Whether attention stays within a document, where a sample holds several."""

    initial: InitialRecipe | None = identity(None)
    """For a training that goes on from another model: what is taken of it besides the weights."""

    def check(self, where):
        """Raise UserError where the model declares fewer positions than a sample has tokens."""
        super().check(where)
        if self.seq_len > self.model.max_positions:
            raise UserError(
                f"{where}.seq_len must be at most model.max_positions ({self.model.max_positions}), got {self.seq_len}"
            )


def run(arguments, plan):
    """Train up to the milestone, and write its manifest."""
    with parallel.ranks() as device:
        with parallel.agreeing():
            corpus = Corpus(arguments.corpus)
            facts = {
                "recipe": recipe.written(plan, "identity"),
                "corpus": corpus.digest,
                "tokenizer": corpus.tokenizer["digest"],
                "vocabulary": corpus.tokenizer["vocabulary"],
            }
            initial = _initial(arguments, plan, facts)
        reach(arguments, plan, plan.model, facts, lambda: _data(corpus, plan), device, initial)


def _initial(arguments, plan, facts):
    """The model from which the run goes on, None for none."""
    if arguments.initial is None and plan.initial is None:
        return None
    if arguments.initial is None or plan.initial is None:
        missing, given = ("--initial", "pretrain.initial") if plan.initial else ("pretrain.initial", "--initial")
        raise UserError(f"{missing} is missing: {given} says that training goes on from another model")
    return Initial(arguments.initial, plan.initial, plan.model, facts, "pretrain")


def _data(corpus, plan):
    """The samples, and what is held out."""
    document_end = corpus.tokenizer["eos"] if plan.document_mask else None
    samples = Samples(corpus, plan.weights, plan.seq_len, plan.seed, document_end)
    sources, tokens = samples.mixture.sources, plan.heldout.tokens
    return samples, heldout.of_corpus(corpus, sources, plan.seq_len, tokens, document_end)


def main(argv=None):
    """The command line."""
    parser = stage.parser("pretrain", __doc__, PretrainRecipe)
    parser.add_argument("--corpus", type=Path, required=True, help="manifest of the corpus")
    parser.add_argument("--initial", type=Path, help="a trained model to go on from, see --model of stages.generate")
    add_options(parser)
    return stage.execute(parser, run, argv)


if __name__ == "__main__":
    stage.leave(main())
