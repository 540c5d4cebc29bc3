"""Fine-tune a trained model on pairs of a prompt and a completion, up to a milestone.

    python -m stages.finetune --prompt-completion results/sources/docstrings/list.json \\
        --corpus results/tokens/main/manifest.json --tokenizer results/tokenizers/main/manifest.json \\
        --initial results/runs/base/models/00000300.json --until 80 \\
        --recipe recipe.json --operation '{"steps": 80}' --train-dir results/runs/docstrings/train \\
        --output results/runs/docstrings/models/00000080.json

On several ranks the same, behind torchrun, see stages.pretrain: it is the same training, with the same run directories,
and a kill costs no more. What differs is the data. Only a completion, and the EOS behind it, are targets: the loss is
theirs alone. Pairs are packed whole into samples and do not see each other; an epoch has each pair once. What is held
out is the validation side of the pairs.

Of --initial come the weights and the model's shape; optimizer and schedule begin anew. The corpus is the one that it
was trained on. None of it is read here: it says which ids begin and end a text, and `convert` and `evaluate` hold the
tuned model against it, as they did the one before.
"""

from dataclasses import dataclass
from pathlib import Path

from stages.lib import recipe, stage
from stages.lib.distributed import collectives
from stages.lib.errors import UserError
from stages.lib.sources import prompt_completion
from stages.lib.tokenizer.tokenizer import Tokenizer
from stages.lib.tokens import prompt_completion_samples
from stages.lib.tokens.corpus import Corpus
from stages.lib.training.initial import RESET, Initial
from stages.lib.training.options import add_options
from stages.lib.training.recipe import TrainRecipe
from stages.lib.training.run import train_to_milestone
from stages.lib.training.validation import Validation


@dataclass(frozen=True, kw_only=True)
class FinetuneRecipe(TrainRecipe):
    """A fine-tuning run; its model is that of --initial."""


def run(arguments, plan):
    """Train up to the milestone, and write its manifest."""
    with collectives.ranks() as device:
        with collectives.raise_on_all_ranks():
            corpus, tokenizer = Corpus(arguments.corpus), Tokenizer(arguments.tokenizer)
            source = prompt_completion.read(arguments.prompt_completion)
            facts = {
                "corpus": corpus.digest,
                "tokenizer": tokenizer.digest,
                "vocab_size": tokenizer.vocab_size,
                "prompt_completion": source.digest,
            }
            if corpus.tokenizer["digest"] != tokenizer.digest:
                raise UserError(
                    f"--tokenizer {arguments.tokenizer} is not the tokenizer of --corpus {arguments.corpus}"
                )
            initial = Initial(arguments.initial, RESET, None, facts, "finetune")
            check_initial(arguments, plan, corpus, initial.found)
            shape = initial.found.recipe
            model = {"model": recipe.written(shape, "identity")}  # beside the rest, as `convert` finds it in pretrain's
            facts["recipe"] = recipe.written(plan, "identity") | model
        train_to_milestone(
            arguments, plan, shape, facts, lambda: _data(source, tokenizer, corpus, plan), device, initial
        )


def check_initial(arguments, plan, corpus, found):
    """Raise UserError where the model was trained on another corpus, or a sample is longer than it has positions."""
    if found.commit is not None and found.commit["corpus"] != corpus.digest:
        raise UserError(
            f"--corpus {arguments.corpus} must be the corpus that --initial {arguments.initial} was trained on, and is "
            "another"
        )
    if plan.seq_len > found.recipe.max_position_embeddings:
        raise UserError(
            f"finetune.seq_len must be at most the positions of --initial ({found.recipe.max_position_embeddings}), "
            f"got {plan.seq_len}"
        )


def _data(source, tokenizer, corpus, plan):
    """The samples, and what is held out."""
    train, validation = (
        prompt_completion_samples.encode(side, tokenizer, corpus.tokenizer["bos_added"])
        for side in (source.train, source.validation)
    )
    eos, seq_len = tokenizer.eos, plan.seq_len
    samples = prompt_completion_samples.PairSamples(source.name, train, seq_len, plan.seed, eos, document_end=eos)
    windows, bytes_per_target = prompt_completion_samples.validation(
        source.name, validation, seq_len, eos, plan.validation.tokens
    )
    return samples, Validation({source.name: windows}, {source.name: bytes_per_target}, document_end=eos)


def main(argv=None):
    """The command line."""
    parser = stage.parser("stages.finetune", __doc__, FinetuneRecipe)
    parser.add_argument("--prompt-completion", type=Path, required=True, help="list of the source of pairs")
    parser.add_argument("--corpus", type=Path, required=True, help="manifest of the corpus of --initial")
    parser.add_argument("--tokenizer", type=Path, required=True, help="manifest of the corpus' tokenizer")
    parser.add_argument("--initial", type=Path, required=True, help="the model to tune, see --model of tools.generate")
    add_options(parser)
    return stage.execute(parser, run, argv)


if __name__ == "__main__":
    stage.leave(main())
