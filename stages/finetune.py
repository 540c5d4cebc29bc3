"""Fine-tune a trained model on conversations, pairs of prompt and completion, or text, up to a milestone.

    python -m stages.finetune --sources results/sources/statements/list.json \\
        --corpus results/tokens/main/manifest.json --tokenizer results/tokenizers/main/manifest.json \\
        --initial results/runs/base/models/00000300.json --until 80 \\
        --recipe recipe.json --operation '{"steps": 80}' --train-dir results/runs/statements/train \\
        --output results/runs/statements/models/00000080.json

On several ranks, run it under torchrun, see stages.pretrain. It is the same training, with the same run directories,
and resumes in the same way after a kill. Only the data differ. By default the loss is that of the assistant's turns, of
completions and the EOS after each; of text it is that of all tokens. Examples are packed whole into samples and do not
attend to each other; an epoch has each example once. Validation uses the validation split of each source.

--initial gives the weights and the model's configuration; optimizer and schedule start from zero. A checkpoint of
ibm-fms or fms-fsdp does not hold its configuration, which is then that of --initial-config. --corpus is the one
that it was trained on. Its text is not read here: its tokenizer settings say which ids begin and end a text, and
`convert` and `evaluate` compare the tuned model with it, as they did the initial one.
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
from stages.lib.chat import template as chat_templates
from stages.lib.errors import UserError
from stages.lib.recipe import identity
from stages.lib.tokens.mixture import Mixture
from stages.lib.training.options import add_options
from stages.lib.training.recipe import TrainRecipe
from stages.lib.tuning.encoded_examples import ASSISTANT, LOSS_ON
from stages.lib.tuning.tuning_samples import BEST_FIT, DROP, PACKINGS, TOO_LONG

if TYPE_CHECKING:
    from stages.lib.checkpoints.find_model import FoundModel
    from stages.lib.tokenizer.tokenizer import Tokenizer
    from stages.lib.tokens.corpus import Corpus
    from stages.lib.training.inputs import TrainingData
    from stages.lib.tuning.tuning_data import TuningSources


@dataclass(frozen=True, kw_only=True)
class FinetuneRecipe(TrainRecipe):
    """A fine-tuning run; its model is that of --initial."""

    weights: dict[str, float] = identity(above=0)
    """Share of the samples per source to fine-tune on, by name: any positive numbers, rounded to 1/4096 of their sum.
    Sources of all kinds can be mixed."""

    template: str | None = identity(None)
    """Chat template of the sources of the kind chat, for which it is required: chatml, tulu, or a file with a Jinja
    template as Hugging Face's tokenizers have it. It is written into the exports."""

    loss_on: str = identity(ASSISTANT, choices=LOSS_ON)
    """Targets of the loss. assistant: the turns of the assistant, and completions. last: the last turn of the assistant
    alone. all: also the other turns, and prompts. All text of documents is a target in any case."""

    packing: str = identity(BEST_FIT, choices=tuple(PACKINGS))
    """Packing of examples into samples. best_fit: several whole examples per sample, which do not attend to each other.
    none: one example per sample, and the rest of it is padding."""

    too_long: str = identity(DROP, choices=TOO_LONG)
    """What becomes of an example of more than `seq_len` tokens: it is dropped, or its beginning is kept. Both are
    counted in the log."""

    def check(self, where: str) -> None:
        """Raise UserError if the weights are not valid, or the template cannot be read."""
        super().check(where)
        Mixture(self.weights, f"{where}.weights")
        if self.template is not None:
            chat_templates.text_of(self.template, f"{where}.template")


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
    from stages.lib.tuning import tuning_data

    with process_group() as device:
        with collectives.raise_on_all_ranks():
            corpus, tokenizer = Corpus(arguments.corpus), Tokenizer(arguments.tokenizer)
            sources = tuning_data.read(arguments.sources, recipe, tokenizer)
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
            identity = RunIdentity(
                recipe=recipes.written(recipe, "identity") | model,
                corpus=corpus.digest,
                tokenizer=tokenizer.digest,
                vocab_size=tokenizer.vocab_size,
                tuned_on=sources.digests,
                template=sources.template.text if sources.template else None,
                model=dataclasses.asdict(model_config),
                steps_before=initial.steps_before,
            )
            inputs = Run(recipe=recipe, model_config=model_config, identity=identity, device=device, initial=initial)
        train_to_milestone(arguments, inputs, lambda: _data(sources, tokenizer, corpus, recipe))


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


def _data(sources: TuningSources, tokenizer: Tokenizer, corpus: Corpus, recipe: FinetuneRecipe) -> TrainingData:
    from stages.lib.training.inputs import TrainingData
    from stages.lib.training.validation import Validation
    from stages.lib.tuning import tuning_data, tuning_samples

    encoded = sources.encoded(tokenizer, corpus.tokenizer["bos_added"], recipe)
    samples = tuning_data.samples(encoded, recipe)
    windows, bytes_per_target = {}, {}
    for name, examples in encoded.validation.items():
        windows[name], bytes_per_target[name] = tuning_samples.validation(
            examples, recipe.seq_len, encoded.end, recipe.validation.tokens, recipe.packing
        )
    validation_split = Validation(windows, bytes_per_target, document_end=samples.document_end)
    return TrainingData(samples=samples, validation=validation_split)


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
