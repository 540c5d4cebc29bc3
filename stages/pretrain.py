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

from stages.lib import recipe, stage
from stages.lib.distributed import collectives
from stages.lib.errors import UserError
from stages.lib.model.llama import ModelRecipe
from stages.lib.recipe import identity
from stages.lib.tokens import loader, order
from stages.lib.tokens.corpus import Corpus
from stages.lib.tokens.mixture import Mixture
from stages.lib.training import validation
from stages.lib.training.initial import Initial, InitialRecipe
from stages.lib.training.options import add_options
from stages.lib.training.recipe import TrainRecipe
from stages.lib.training.run import train_to_milestone


@dataclass(frozen=True, kw_only=True)
class DataStageRecipe:
    """Other weights of the sources, from a step on."""

    step: int = identity(minimum=1)
    """After how many steps of this run they hold. It is counted in samples, `step * global_batch_size`: after a
    rollback that skipped samples, it is that many samples earlier."""

    weights: dict[str, float] = identity(above=0)
    """As `weights` of the run; a source that is left out rests, and goes on later where it was."""


@dataclass(frozen=True, kw_only=True)
class PretrainRecipe(TrainRecipe):
    """A pretraining run."""

    model: ModelRecipe = identity()
    """The shape of the model."""

    weights: dict[str, float] = identity(above=0)
    """How much of the tokens each source gives, by its name; any positive numbers, rounded to 1/4096 of their sum."""

    data_stages: list[DataStageRecipe] = identity([])
    """Other weights from some steps on, in the order of the steps. Each source goes on where it was: none of its text
    comes back before its epoch ends. Default: the same weights to the end."""

    packing: str = identity("chunk", choices=loader.KINDS)
    """How text becomes samples. window: a source's text is cut every `seq_len` tokens, and the windows are shuffled.
    concat: its documents are shuffled, laid end to end and cut every `seq_len` tokens, so that the pieces of a
    document follow each other. best_fit: documents lie whole in a sample where they fit, several beside each other;
    only longer ones are cut, and what stays free is filled up and no target."""

    document_mask: bool = identity(False)
    """Whether attention stays within a document, where a sample holds several."""

    initial: InitialRecipe | None = identity(None)
    """For a training that goes on from another model: what is taken of it besides the weights."""

    def check(self, where):
        """Raise UserError where the model declares fewer positions than a sample has tokens."""
        super().check(where)
        if self.seq_len > self.model.max_position_embeddings:
            raise UserError(
                f"{where}.seq_len must be at most model.max_position_embeddings "
                f"({self.model.max_position_embeddings}), got {self.seq_len}"
            )
        Mixture(self.weights, f"{where}.weights")
        before = 0
        for number, phase in enumerate(self.data_stages):
            Mixture(phase.weights, f"{where}.data_stages[{number}].weights")
            if not before < phase.step < self.steps:
                raise UserError(
                    f"{where}.data_stages[{number}].step must be greater than {before} and less than steps "
                    f"({self.steps}), got {phase.step}"
                )
            before = phase.step


def run(arguments, plan):
    """Train up to the milestone, and write its manifest."""
    with collectives.ranks() as device:
        with collectives.raise_on_all_ranks():
            corpus = Corpus(arguments.corpus)
            facts = {
                "recipe": recipe.written(plan, "identity"),
                "corpus": corpus.digest,
                "tokenizer": corpus.tokenizer["digest"],
                "vocab_size": corpus.tokenizer["vocab_size"],
            }
            initial = _initial(arguments, plan, facts, corpus)
            continues = plan.initial is not None and plan.initial.data == "continue"
            wanted = order.of_run(plan, corpus, initial.commit if continues else None)
            facts["data"] = wanted.facts()
        train_to_milestone(arguments, plan, plan.model, facts, lambda: _data(corpus, plan, wanted), device, initial)


def _initial(arguments, plan, facts, corpus):
    """The model from which the run goes on, None for none."""
    if arguments.initial is None and plan.initial is None:
        return None
    if arguments.initial is None or plan.initial is None:
        missing, given = ("--initial", "pretrain.initial") if plan.initial else ("pretrain.initial", "--initial")
        raise UserError(f"{missing} is missing: {given} says that training goes on from another model")
    initial = Initial(arguments.initial, plan.initial, plan.model, facts, "pretrain")
    if plan.initial.data == "continue":
        initial.check_data(order.of_run(plan, corpus), corpus, "pretrain")
    return initial


def _data(corpus, plan, wanted):
    """The samples, and what is held out."""
    made = corpus.tokenizer
    if plan.document_mask and made["bos_added"] and made["bos"] == made["eos"]:
        raise UserError(
            "pretrain.document_mask must be false where BOS and EOS are one token: the BOS of a document would end it; "
            "with tokenize.bos: false there is one between documents"
        )
    for number, phase in enumerate(plan.data_stages):
        loader.check_named(phase.weights, corpus, f"pretrain.data_stages[{number}].weights")
    document_end = corpus.tokenizer["eos"] if plan.document_mask else None
    samples = wanted.samples(corpus, document_end)
    sources, tokens = samples.mixture.sources, plan.validation.tokens
    return samples, validation.of_corpus(corpus, sources, plan.seq_len, tokens, document_end)


def main(argv=None):
    """The command line."""
    parser = stage.parser("stages.pretrain", __doc__, PretrainRecipe)
    parser.add_argument("--corpus", type=Path, required=True, help="manifest of the corpus")
    parser.add_argument("--initial", type=Path, help="a trained model to go on from, see --model of tools.generate")
    add_options(parser)
    return stage.execute(parser, run, argv)


if __name__ == "__main__":
    stage.leave(main())
