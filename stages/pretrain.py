"""Pretrain a model up to a milestone, from the newest checkpoint of its run directory.

    python -m stages.pretrain --corpus results/tokens/main/manifest.json --until 300 --recipe recipe.json \\
        --operation '{"steps": 300}' --train-dir results/runs/base/train --output results/runs/base/models/00000300.json

On several ranks: `workflow/launch 2 -m stages.pretrain ...`, or `mpiexec -n 2 python -m stages.pretrain ...`. The run
directory is TRAIN_DIR/<digest of recipe and corpus>; it holds checkpoints/, metrics.jsonl, events.jsonl and the lease.
After a kill, run the same command again: it resumes from the newest complete checkpoint. To train again from the start,
delete the directory.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stages.lib import recipe as recipes
from stages.lib import stage
from stages.lib.errors import UserError
from stages.lib.huggingface import config_json
from stages.lib.model.architectures import ARCHITECTURES
from stages.lib.model.model_recipe import ModelRecipe
from stages.lib.recipe import identity
from stages.lib.run_directory.run_identity import RunIdentity
from stages.lib.tokens import loader
from stages.lib.tokens.corpus import Corpus
from stages.lib.tokens.data_order import Mixture
from stages.lib.tokens.fill_in_the_middle import MIN_TOKENS, FillInTheMiddleRecipe
from stages.lib.tokens.packing import PACKINGS
from stages.lib.training.settings import requirements
from stages.lib.training.settings.options import add_options
from stages.lib.training.settings.recipe import InitialRecipe, TrainRecipe

if TYPE_CHECKING:
    from stages.lib.training.initial import Initial
    from stages.lib.training.trainer import TrainingData


@dataclass(frozen=True, kw_only=True)
class DataStageRecipe:
    """Weights of the sources from a step on."""

    step: int = identity(minimum=1)
    """Number of steps of this run after which the weights apply. It is counted in samples, `step * global_batch_size`,
    and the samples that a rollback skips count as well."""

    weights: dict[str, float] = identity(above=0)
    """As `weights` of the run; a source that is not named pauses, and resumes later where it was."""


@dataclass(frozen=True, kw_only=True)
class PretrainRecipe(TrainRecipe):
    """A pretraining run."""

    model: ModelRecipe = identity(variants=ARCHITECTURES)
    """The model's configuration."""

    weights: dict[str, float] = identity(above=0)
    """Share of the tokens per source, by name: any positive numbers, rounded to 1/4096 of their sum."""

    data_stages: list[DataStageRecipe] = identity([])
    """Weights from later steps on, in the order of the steps. Each source resumes where it was: none of its text
    repeats before its epoch ends. Default: the same weights to the end."""

    packing: str = identity("chunk", choices=tuple(PACKINGS))
    """Packing of documents into samples. chunk: a source's text is cut every `seq_len` tokens, and the chunks are
    shuffled. concat: its documents are shuffled, concatenated and cut every `seq_len` tokens, so that the segments of a
    document follow each other. best_fit: documents of at most `seq_len` + 1 tokens stay whole, several per sample; only
    longer ones are cut, and the rest of a sample is padding without targets."""

    document_mask: bool = identity(False)
    """Restrict attention to the tokens of the same document."""

    fill_in_the_middle: FillInTheMiddleRecipe | None = identity(None, switch=True)
    """Permute a share of the text to prefix, suffix and middle, so that the model learns to fill in; `{}` for the
    defaults. The corpus' tokenizer must have the special tokens, see `fill_in_the_middle` of `tokenizers`. The order of
    the samples and the validation text stay."""

    initial: InitialRecipe | None = identity(None)
    """For a training that starts from another model: what it takes from it besides the weights."""

    def check(self, where: str) -> None:
        """Raise UserError if a sample is longer than the model's positions, or keys do not fit each other."""
        super().check(where)
        requirements.check(self, where, self.model, has_lora=False, has_document_mask=self.document_mask)
        if self.seq_len > self.model.max_position_embeddings:
            raise UserError(
                f"{where}.seq_len must be at most model.max_position_embeddings "
                f"({self.model.max_position_embeddings}), got {self.seq_len}"
            )
        Mixture(self.weights, f"{where}.weights")
        before = 0
        for number, data_stage in enumerate(self.data_stages):
            Mixture(data_stage.weights, f"{where}.data_stages[{number}].weights")
            if not before < data_stage.step < self.steps:
                raise UserError(
                    f"{where}.data_stages[{number}].step must be greater than {before} and less than steps "
                    f"({self.steps}), got {data_stage.step}"
                )
            before = data_stage.step
        if self.fill_in_the_middle is not None:
            self._check_fill_in_the_middle(f"{where}.fill_in_the_middle", self.fill_in_the_middle)

    def _check_fill_in_the_middle(self, where: str, recipe: FillInTheMiddleRecipe) -> None:
        if self.seq_len < MIN_TOKENS:
            raise UserError(
                f"{where} requires a seq_len of at least {MIN_TOKENS}, since it permutes no shorter text, got "
                f"{self.seq_len}"
            )
        weights = (self.weights, *(data_stage.weights for data_stage in self.data_stages))
        sources = sorted({source for named in weights for source in named})
        for source in recipe.sources or ():
            if source not in sources:
                raise UserError(
                    f"{where}.sources must name sources of the run's weights ({', '.join(sources)}), got {source!r}"
                )


def run(arguments: argparse.Namespace, recipe: PretrainRecipe) -> None:
    """Train up to the milestone, and write its manifest."""
    from stages.lib.distributed import collectives
    from stages.lib.distributed.process_group import process_group
    from stages.lib.training.run import train_to_milestone
    from stages.lib.training.trainer import Run

    with process_group() as device:
        with collectives.raise_on_all_ranks():
            corpus = Corpus(arguments.corpus)
            initial = _initial(arguments, recipe, corpus)
            continues = initial is not None and initial.recipe.data == "continue"
            run_order = loader.from_recipe(recipe, corpus, initial.commit if initial and continues else None)
            run_identity = RunIdentity(
                recipe=recipes.written(recipe, "identity"),
                corpus=corpus.digest,
                tokenizer=corpus.tokenizer["digest"],
                vocab_size=initial.found.vocab_size if initial else corpus.tokenizer["vocab_size"],
                data=run_order.to_json(),
                model=dataclasses.asdict(recipe.model),
                steps_before=initial.steps_before if initial else 0,
            )
            inputs = Run(
                recipe=recipe, model_config=recipe.model, identity=run_identity, device=device, initial=initial
            )
        train_to_milestone(arguments, inputs, lambda: _data(corpus, recipe, run_order))


def _initial(arguments: argparse.Namespace, recipe: PretrainRecipe, corpus: Corpus) -> Initial | None:
    from stages.lib.training.initial import Initial

    if arguments.initial is None and recipe.initial is None:
        return None
    if arguments.initial is None or recipe.initial is None:
        missing, given = ("--initial", "pretrain.initial") if recipe.initial else ("pretrain.initial", "--initial")
        raise UserError(f"{missing} is missing: {given} requires it, to start from another model")
    initial = Initial(
        arguments.initial,
        recipe.initial,
        recipe.model,
        corpus=corpus,
        where="pretrain",
    )
    initial.check_optimizer(recipe.optimizer.name, "pretrain")
    if recipe.initial.data == "continue":
        initial.check_data(loader.from_recipe(recipe, corpus), corpus, "pretrain")
    return initial


def _data(corpus: Corpus, recipe: PretrainRecipe, run_order: loader.Order) -> TrainingData:
    from stages.lib.training import validation
    from stages.lib.training.trainer import TrainingData

    tokenizer = corpus.tokenizer
    if recipe.document_mask and tokenizer["bos_added"] and tokenizer["bos"] == tokenizer["eos"]:
        raise UserError(
            "pretrain.document_mask must be false if BOS and EOS are one token, since BOS would end its document; "
            "with tokenize.bos: false one such token stands between documents"
        )
    for number, data_stage in enumerate(recipe.data_stages):
        loader.check_named(data_stage.weights, corpus, f"pretrain.data_stages[{number}].weights")
    document_end = tokenizer["eos"] if recipe.document_mask else None
    samples = run_order.samples(corpus, document_end)
    sources = samples.mixture.sources
    tokens = recipe.validation_tokens(len(sources), recipe.milestones)
    return TrainingData(
        samples=samples,
        validation=validation.from_corpus(corpus, sources, recipe.seq_len, tokens, document_end),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    parser = stage.parser("stages.pretrain", __doc__, PretrainRecipe)
    parser.add_argument("--corpus", type=Path, required=True, help="manifest of the corpus")
    parser.add_argument("--model-config", type=Path, help="config.json of the shape; recipe key model overrides it")
    parser.add_argument("--initial", type=Path, help="model to start from, see --model of tools.generate")
    add_options(parser)
    return stage.execute(parser, run, argv, config_json.keys_of_option)


if __name__ == "__main__":
    stage.leave(main())
