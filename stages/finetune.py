"""Fine-tune a trained model on conversations, prompts and completions, text, or preferences, up to a milestone.

    python -m stages.finetune --sources results/sources/statements/list.json \\
        --corpus results/tokens/main/manifest.json --tokenizer results/tokenizers/main/manifest.json \\
        --initial results/runs/base/models/00000300.json --until 80 \\
        --recipe recipe.json --operation '{"steps": 80}' --train-dir results/runs/statements/train \\
        --output results/runs/statements/models/00000080.json

On several ranks, run it as stages.pretrain. It is the same training, with the same run directories,
and resumes in the same way after a kill. Only the data differ. By default the loss is that of the assistant's turns, of
completions and the EOS after each; of text it is that of all tokens. Examples are packed whole into samples and do not
attend to each other; an epoch has each example once. Validation uses the validation split of each source.

With the recipe's key `dpo` the data is a source of the kind `preference`, and a sample is a pair of a chosen and a
rejected completion (direct preference optimization). --initial is also the reference: its log-probabilities of all
pairs are computed once, before the first step.

--initial gives the weights and the model's configuration; optimizer and schedule start from zero. A checkpoint of
ibm-fms or fms-fsdp does not hold its configuration, which is then that of --initial-config. --corpus is the one
that it was trained on. Its text is not read here: its tokenizer settings say which ids begin and end a text, and
`convert` and `evaluate` compare the tuned model with it, as they did the initial one.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stages.lib import recipe as recipes
from stages.lib import stage
from stages.lib.chat import template as chat_templates
from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.model import key_table
from stages.lib.model.key_table import LoraRecipe
from stages.lib.recipe import default_of, horizon, identity
from stages.lib.run_directory.run_identity import RunIdentity
from stages.lib.tokenizer.tokenizer import Tokenizer
from stages.lib.tokens.corpus import Corpus
from stages.lib.tokens.data_order import Mixture
from stages.lib.training.settings import requirements
from stages.lib.training.settings.options import add_options
from stages.lib.training.settings.recipe import DpoRecipe, TrainRecipe
from stages.lib.tuning.encoded_examples import ASSISTANT, LOSS_ON
from stages.lib.tuning.tuning_samples import BEST_FIT, DROP, PACKINGS, TOO_LONG

if TYPE_CHECKING:
    from stages.lib.training.initial import Initial
    from stages.lib.training.trainer import TrainingData
    from stages.lib.tuning.tuning_sources import TuningData, TuningSources

NOT_BESIDE_DPO = ("z_loss", "loss_on", "packing", "too_long")


@dataclass(frozen=True, kw_only=True)
class FinetuneRecipe(TrainRecipe):
    """A fine-tuning run; its model is that of --initial."""

    steps: int = horizon(None, minimum=1)  # None with `epochs`, until `in_steps` replaces them
    """Optimizer steps of the whole run: the learning-rate schedule ends here. Either it or `epochs` is required."""

    epochs: int | None = horizon(None, minimum=1)
    """In place of `steps`: number of epochs, each with as many samples as all sources together. Then `milestones`, and
    `initial.step` of a run that starts from this one, are numbers of epochs too."""

    weights: dict[str, float] = identity(above=0)
    """Share of the samples per source to fine-tune on, by name: any positive numbers, rounded to 1/4096 of their sum.
    Sources of all kinds can be mixed."""

    template: str | None = identity(None)
    """Chat template of conversations: chatml, tulu, or a file with a Jinja template as Hugging Face's tokenizers have
    it. It is written into the exports. Default: that of the initial model, if it has one."""

    loss_on: str = identity(ASSISTANT, choices=LOSS_ON)
    """Targets of the loss. assistant: the turns of the assistant, and completions. last: the last turn of the assistant
    alone. all: also the other turns, and prompts. All text of documents is a target in any case."""

    packing: str = identity(BEST_FIT, choices=tuple(PACKINGS))
    """Packing of examples into samples. best_fit: several whole examples per sample, which do not attend to each other.
    none: one example per sample, and the rest of it is padding."""

    too_long: str = identity(DROP, choices=TOO_LONG)
    """Treatment of an example of more than `seq_len` tokens: it is dropped, or its beginning is kept. Both are
    counted in the log."""

    lora: LoraRecipe | None = identity(None)
    """LoRA: adapters are trained beside the frozen weights. Default: all weights are trained."""

    dpo: DpoRecipe | None = identity(None)
    """Tune on preferences by direct preference optimization (arXiv 2305.18290). `weights` names one source of the kind
    preference, a sample is a pair, and `seq_len` the tokens of each of its two rows. Default: next-token prediction."""

    @property
    def objective(self) -> str:
        """Name of the objective, see `step.OBJECTIVES`."""
        return "next_token" if self.dpo is None else "dpo"

    def check(self, where: str) -> None:
        """Raise UserError if the weights are not valid, the template cannot be read, or a key has no effect."""
        if (self.steps is None) == (self.epochs is None):
            raise UserError(f"{where} must have steps or epochs, got {'neither' if self.epochs is None else 'both'}")
        if self.epochs is None:
            super().check(where)
        Mixture(self.weights, f"{where}.weights")
        requirements.check(self, where, None, has_lora=self.lora is not None, has_document_mask=True)
        if self.lora is not None:
            self.optimizer.check_lora(f"{where}.optimizer")
        if self.dpo is not None:
            if len(self.weights) > 1:
                found = ", ".join(sorted(self.weights))
                raise UserError(f"{where}.weights must name one source beside {where}.dpo, got {found}")
            for field in dataclasses.fields(self):
                value = getattr(self, field.name)
                if field.name in NOT_BESIDE_DPO and value != default_of(field):
                    raise UserError(f"{where}.{field.name} must be left out beside {where}.dpo, got {value}")
        if self.template is not None:
            chat_templates.text_of(self.template, f"{where}.template")


def run(arguments: argparse.Namespace, recipe: FinetuneRecipe) -> None:
    """Train up to the milestone, and write its manifest."""
    from stages.lib.distributed import collectives
    from stages.lib.distributed.process_group import process_group
    from stages.lib.training.run import check_until, train_to_milestone
    from stages.lib.training.trainer import Run
    from stages.lib.tuning import tuning_sources

    with process_group() as device:
        with collectives.raise_on_all_ranks():
            corpus, tokenizer = Corpus(arguments.corpus), Tokenizer(arguments.tokenizer)
            initial = find_initial(arguments, recipe, corpus, tokenizer)
            template = tuning_sources.template_of(recipe, initial.found.template, tokenizer)
            sources = tuning_sources.read(arguments.sources, recipe, template)
            run_identity = identity_of(recipe, corpus, tokenizer, sources, initial)
            bos, tokens = corpus.tokenizer["bos_added"], functools.partial(_validation_tokens, recipe)
            data = functools.cache(functools.partial(sources.data, tokenizer, bos, recipe, tokens))
            if recipe.epochs is not None:
                check_until(arguments.until, recipe.epochs, "finetune.epochs")
                arguments, recipe = in_steps(arguments, recipe, data().samples.samples_per_epoch)
            inputs = Run(
                recipe=recipe,
                model_config=initial.found.model_config,
                identity=run_identity,
                device=device,
                initial=initial,
                lora=recipe.lora,
            )
        train_to_milestone(arguments, inputs, lambda: _training_data(data()))


def find_initial(
    arguments: argparse.Namespace, recipe: FinetuneRecipe, corpus: Corpus, tokenizer: Tokenizer
) -> Initial:
    """Find the model to tune. Raises UserError if it has another tokenizer or corpus, or too few positions."""
    from stages.lib.training.initial import RESET, Initial

    if corpus.tokenizer["digest"] != tokenizer.digest:
        raise UserError(f"--tokenizer {arguments.tokenizer} is not the tokenizer of --corpus {arguments.corpus}")
    initial = Initial(
        arguments.initial,
        RESET,
        None,
        corpus=corpus,
        where="finetune",
        config=arguments.initial_config,
    )
    if initial.commit is not None and initial.commit["corpus"] != corpus.digest:
        raise UserError(
            f"--corpus {arguments.corpus} is not the corpus that --initial {arguments.initial} was trained on"
        )
    model_config = initial.found.model_config
    if recipe.lora is not None:
        recipe.lora.check_model(key_table.build(model_config, initial.found.vocab_size), "finetune.lora")
    positions = model_config.max_position_embeddings
    if recipe.seq_len > positions:
        raise UserError(
            f"finetune.seq_len must be at most max_position_embeddings of --initial ({positions}), got {recipe.seq_len}"
        )
    return initial


def identity_of(
    recipe: FinetuneRecipe, corpus: Corpus, tokenizer: Tokenizer, sources: TuningSources, initial: Initial
) -> RunIdentity:
    """Return the identity of the run."""
    model_config = initial.found.model_config
    # the model beside the other keys, where `convert` finds it in a pretraining's recipe
    model = {"model": recipes.written(model_config, "identity")}
    return RunIdentity(
        recipe=recipes.written(recipe, "identity") | model,
        corpus=corpus.digest,
        tokenizer=tokenizer.digest,
        vocab_size=initial.found.vocab_size,
        tuned_on=sources.digests,
        template=sources.template.text if sources.template else None,
        model=dataclasses.asdict(model_config),
        adapter=dataclasses.asdict(recipe.lora) | {"base_dtype": recipe.dtype} if recipe.lora else None,
        steps_before=initial.steps_before,
    )


def _validation_tokens(recipe: FinetuneRecipe, samples: int) -> int:
    """Return `validation_tokens` of a recipe in steps or epochs. `samples`: those of an epoch."""
    steps = recipe.epochs and math.ceil(recipe.epochs * samples / recipe.global_batch_size)
    return recipe.validation_tokens(len(recipe.weights), recipe.milestones, steps)


def in_steps(
    arguments: argparse.Namespace, recipe: FinetuneRecipe, samples: int
) -> tuple[argparse.Namespace, FinetuneRecipe]:
    """Return arguments and recipe with steps in place of epochs. `samples`: those of an epoch.

    An epoch that ends within a step ends after it. Raises UserError if an epoch has no whole step, or the schedule does
    not fit into the steps.
    """
    assert recipe.epochs is not None
    if recipe.global_batch_size > samples:
        raise UserError(
            f"finetune.global_batch_size must be at most the samples of an epoch ({samples}) with finetune.epochs, got "
            f"{recipe.global_batch_size}: one step would train {recipe.global_batch_size / samples:.3g} epochs; lower "
            "it, or set finetune.steps in place of finetune.epochs"
        )
    until, steps = (
        math.ceil(epochs * samples / recipe.global_batch_size) for epochs in (arguments.until, recipe.epochs)
    )
    logger.info("an epoch has %s samples; %s epochs are %s steps", samples, recipe.epochs, steps)
    changed = dataclasses.replace(recipe, steps=steps, epochs=None)
    changed.check("finetune")
    return argparse.Namespace(**vars(arguments) | {"until": until}), changed


def _training_data(data: TuningData) -> TrainingData:
    from stages.lib.training.trainer import TrainingData
    from stages.lib.training.validation import Validation

    split = Validation(data.validation, data.num_bytes, document_end=data.samples.document_end)
    return TrainingData(samples=data.samples, validation=split)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    parser = stage.parser("stages.finetune", __doc__, FinetuneRecipe)
    parser.add_argument("--sources", type=Path, required=True, nargs="+", help="lists of the sources of the weights")
    parser.add_argument("--corpus", type=Path, required=True, help="manifest of the corpus of --initial")
    parser.add_argument("--tokenizer", type=Path, required=True, help="manifest of the tokenizer of the corpus")
    parser.add_argument("--initial", type=Path, required=True, help="model to tune, see --model of tools.generate")
    parser.add_argument("--initial-config", type=Path, help="config.json of --initial, if that does not hold it")
    add_options(parser)
    return stage.execute(parser, run, argv)


if __name__ == "__main__":
    stage.leave(main())
