"""Fine-tune a trained model on pairs of prompt and completion, or on preferences, up to a milestone.

    python -m stages.finetune --prompt-completion results/sources/docstrings/list.json \\
        --corpus results/tokens/main/manifest.json --tokenizer results/tokenizers/main/manifest.json \\
        --initial results/runs/base/models/00000300.json --until 80 \\
        --recipe recipe.json --operation '{"steps": 80}' --train-dir results/runs/docstrings/train \\
        --output results/runs/docstrings/models/00000080.json

On several ranks, run it under torchrun, see stages.pretrain. It is the same training, with the same run directories,
and resumes in the same way after a kill. Only the data differ. Targets are the completions and the EOS after each: the
loss is theirs alone. Pairs are packed whole into samples and do not attend to each other; an epoch has each pair once.
Validation uses the validation split of the pairs.

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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stages.lib import recipe as recipes
from stages.lib import stage
from stages.lib.errors import UserError
from stages.lib.model.lora_recipe import LoraRecipe
from stages.lib.recipe import identity
from stages.lib.training.objectives.recipe import DpoRecipe
from stages.lib.training.options import add_options
from stages.lib.training.recipe import TrainRecipe

if TYPE_CHECKING:
    from stages.lib.checkpoints.find_model import FoundModel
    from stages.lib.preferences.source import PreferenceSource
    from stages.lib.sources.prompt_completion import PairSource
    from stages.lib.tokenizer.tokenizer import Tokenizer
    from stages.lib.tokens.corpus import Corpus
    from stages.lib.training.inputs import TrainingData


@dataclass(frozen=True, kw_only=True)
class FinetuneRecipe(TrainRecipe):
    """A fine-tuning run; its model is that of --initial."""

    lora: LoraRecipe | None = identity(None)
    """LoRA: adapters are trained beside the frozen weights. Default: all weights are trained."""

    dpo: DpoRecipe | None = identity(None)
    """Tune on preferences by direct preference optimization (arXiv 2305.18290). The source is of the kind preference, a
    sample is a pair, and `seq_len` the tokens of each of its two rows. Default: next-token prediction of completions.
    """

    @property
    def objective(self) -> str:
        """Name of the objective, see `objectives.registry`."""
        return "next_token" if self.dpo is None else "dpo"

    def check(self, where: str) -> None:
        """Raise UserError if a key has no effect beside another."""
        super().check(where)
        if self.dpo is not None and self.z_loss:
            raise UserError(f"{where}.z_loss must be left out beside {where}.dpo, got {self.z_loss}")


def run(arguments: argparse.Namespace, recipe: FinetuneRecipe) -> None:
    """Train up to the milestone, and write its manifest."""
    from stages.lib.distributed import collectives
    from stages.lib.distributed.process_group import process_group
    from stages.lib.run_directory.run_identity import RunIdentity
    from stages.lib.tokenizer.tokenizer import Tokenizer
    from stages.lib.tokens.corpus import Corpus
    from stages.lib.training.initial import RESET, Initial
    from stages.lib.training.inputs import Run
    from stages.lib.training.run import train_to_milestone

    with process_group() as device:
        with collectives.raise_on_all_ranks():
            corpus, tokenizer = Corpus(arguments.corpus), Tokenizer(arguments.tokenizer)
            source, data_of = _source(arguments.prompt_completion, recipe)
            if corpus.tokenizer["digest"] != tokenizer.digest:
                raise UserError(
                    f"--tokenizer {arguments.tokenizer} must be the tokenizer of --corpus {arguments.corpus}, "
                    "got another tokenizer"
                )
            initial = Initial(
                arguments.initial,
                RESET,
                None,
                tokenizer=tokenizer.digest,
                vocab_size=tokenizer.vocab_size,
                where="finetune",
                config=arguments.initial_config,
            )
            check_initial(arguments, recipe, corpus, initial.found)
            model_config = initial.found.model_config
            # the model beside the other keys, where `convert` finds it in a pretraining's recipe
            model = {"model": recipes.written(model_config, "identity")}
            run_identity = RunIdentity(
                recipe=recipes.written(recipe, "identity") | model,
                corpus=corpus.digest,
                tokenizer=tokenizer.digest,
                vocab_size=tokenizer.vocab_size,
                prompt_completion=source.digest,
                model=dataclasses.asdict(model_config),
                adapter=dataclasses.asdict(recipe.lora) | {"base_dtype": recipe.dtype} if recipe.lora else None,
                steps_before=initial.steps_before,
            )
            inputs = Run(
                recipe=recipe,
                model_config=model_config,
                identity=run_identity,
                device=device,
                initial=initial,
                lora=recipe.lora,
            )
        train_to_milestone(arguments, inputs, lambda: data_of(source, tokenizer, corpus, recipe))


def check_initial(arguments: argparse.Namespace, recipe: FinetuneRecipe, corpus: Corpus, found: FoundModel) -> None:
    """Raise UserError if the model was trained on another corpus, or a sample is longer than its positions."""
    if found.commit is not None and found.commit["corpus"] != corpus.digest:
        raise UserError(
            f"--corpus {arguments.corpus} must be the corpus that --initial {arguments.initial} was trained on, "
            "got another corpus"
        )
    if recipe.seq_len > found.model_config.max_position_embeddings:
        raise UserError(
            "finetune.seq_len must be at most max_position_embeddings of --initial "
            f"({found.model_config.max_position_embeddings}), got {recipe.seq_len}"
        )


def _source(path: Path, recipe: FinetuneRecipe) -> tuple[Any, Callable[..., TrainingData]]:
    """Return (source, function of it that makes the data) of the kind that the recipe's objective reads."""
    if recipe.dpo is not None:
        from stages.lib.preferences import source as preferences

        return preferences.read(path), _preferences
    from stages.lib.sources import prompt_completion

    return prompt_completion.read(path), _pairs


def _pairs(source: PairSource, tokenizer: Tokenizer, corpus: Corpus, recipe: FinetuneRecipe) -> TrainingData:
    from stages.lib.tokens import prompt_completion_samples
    from stages.lib.training.inputs import TrainingData
    from stages.lib.training.validation import Validation

    train, validation = (
        prompt_completion_samples.encode(pairs, tokenizer, corpus.tokenizer["bos_added"])
        for pairs in (source.train, source.validation)
    )
    eos, seq_len = tokenizer.eos, recipe.seq_len
    samples = prompt_completion_samples.PairSamples(source.name, train, seq_len, recipe.seed, eos, document_end=eos)
    windows, bytes_per_target = prompt_completion_samples.validation(
        source.name, validation, seq_len, eos, recipe.validation.tokens
    )
    validation_split = Validation({source.name: windows}, {source.name: bytes_per_target}, document_end=eos)
    return TrainingData(samples=samples, validation=validation_split)


def _preferences(
    source: PreferenceSource, tokenizer: Tokenizer, corpus: Corpus, recipe: FinetuneRecipe
) -> TrainingData:
    from stages.lib.preferences import samples
    from stages.lib.training.inputs import TrainingData
    from stages.lib.training.validation import Validation

    train, validation = (
        samples.encode(preferences, tokenizer, corpus.tokenizer["bos_added"])
        for preferences in (source.train, source.validation)
    )
    made = samples.PreferenceSamples(
        source.name, train, validation, recipe.seq_len, recipe.seed, tokenizer.eos, recipe.validation.tokens
    )
    return TrainingData(samples=made, validation=Validation({source.name: made.validation()}, {}))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    parser = stage.parser("stages.finetune", __doc__, FinetuneRecipe)
    parser.add_argument("--prompt-completion", type=Path, required=True, help="list of the source to tune on")
    parser.add_argument("--corpus", type=Path, required=True, help="manifest of the corpus of --initial")
    parser.add_argument("--tokenizer", type=Path, required=True, help="manifest of the tokenizer of the corpus")
    parser.add_argument("--initial", type=Path, required=True, help="model to tune, see --model of tools.generate")
    parser.add_argument("--initial-config", type=Path, help="config.json of --initial, if that does not hold it")
    add_options(parser)
    return stage.execute(parser, run, argv)


if __name__ == "__main__":
    stage.leave(main())
