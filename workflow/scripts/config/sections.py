"""The structure of a config, as dataclasses in the manner of the stages' recipes: its check, its JSON schema and its
README derive from them.

What a stage reads is its own recipe, of `stages/registry.py`; what stands around it only the workflow reads. Of these
keys there are two more kinds: a `name` refers to an entry of another section, and the others are `workflow`.
"""

# mypy: disable-error-code="valid-type, misc"
# The registry of the stages names their recipes: mypy sees variables where types stand.

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, ClassVar

from stages.lib.model.architectures import ARCHITECTURES
from stages.lib.recipe import field, horizon, identity
from stages.registry import STAGES

name = functools.partial(field, "name")
workflow = functools.partial(field, "workflow")
section = functools.partial(field, "workflow", entries=1, names=True)


def recipe_of(stage: str) -> Any:
    """Return the recipe of a stage."""
    return STAGES[stage].recipe_type


SourceRecipe, TokenizerRecipe, TokenizeRecipe = map(recipe_of, ("list", "train_tokenizer", "tokenize"))
PretrainRecipe, FinetuneRecipe = map(recipe_of, ("pretrain", "finetune"))
AverageWeightsRecipe = recipe_of("average_weights")
ConvertRecipe, EvaluateRecipe, DescribeRecipe = map(recipe_of, ("convert", "evaluate", "describe"))
BestRecipe, ContaminationRecipe = map(recipe_of, ("select_best", "find_contamination"))
NearDuplicatesRecipe, ClassifierRecipe = map(recipe_of, ("verify_duplicates", "train_classifier"))


@dataclass(frozen=True, kw_only=True)
class Tokenizer(TokenizerRecipe):
    """A trained or custom tokenizer."""

    sample: dict[str, float] | None = identity(None, above=0, needs=("vocab_size",))
    """The sources to train on, each with its weight in the sample. Default: all sources of text, in equal shares."""


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Sources, tokenized and cut into shards."""

    tokenizer: str = name(None)
    """The tokenizer. Default: the only one."""

    sources: list[str] = name(None, entries=1, unique=True)
    """Its sources; a run mixes them by its weights. Default: all sources of text."""

    tokenize: TokenizeRecipe = identity(None)
    """The shards of its text."""

    near_duplicates: NearDuplicatesRecipe | None = identity(None, switch=True)
    """Remove near duplicates within and across its sources, verified by comparing the texts; `{}` for the defaults.
    Default: they stay. The text is read twice more, and words of equal documents are compared without case and
    punctuation; `tokenize.duplicates: drop` beside it also finds documents without a word and pre-tokenized ones."""


@dataclass(frozen=True, kw_only=True)
class Suite(EvaluateRecipe):
    """A suite: the recipe of its evaluation, and the source that its own tasks read."""

    prompt_completion: str = name(None)
    """The prompt-completion source whose validation split the tasks completion_* read."""


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """A model that was made elsewhere."""

    path: str = identity()
    """A directory with config.json, *.safetensors and a tokenizer with a BOS token, relative to the working directory;
    or a repository of the Hub (`rule prefetch` downloads it)."""

    revision: str = identity(None)
    """Branch, tag or commit of the repository. Default: its newest."""


@dataclass(frozen=True, kw_only=True)
class ModelFile:
    """The shape of a model by a file."""

    from_: str = identity(None, replaces_required=True)
    """The config.json of a Hugging Face model, or its directory, relative to the working directory. It gives the keys
    below, except those written beside it; the vocabulary is the tokenizer's."""


def model_of_any_architecture() -> Any:
    """Return the dataclass of a model with the keys of all architectures; a stage refuses those of another one.

    With `from`, the file names the architecture.
    """
    types = list(ARCHITECTURES.types.values())
    leaves = [made for made in types if not any(made in other.__mro__[1:] for other in types)]
    # dataclasses take the fields of the last base first
    keys = {
        "__annotations__": {ARCHITECTURES.key: str},
        ARCHITECTURES.key: identity(ARCHITECTURES.default, choices=tuple(ARCHITECTURES.types)),
    }
    return dataclass(frozen=True, kw_only=True)(type("Model", (*reversed(leaves), ModelFile), keys))


Model = model_of_any_architecture()


@dataclass(frozen=True, kw_only=True)
class Initial:
    """The model that a run starts from."""

    run: str = name(None)
    """The run whose model this run starts from; for a tuned run, the run to tune, and for averaged weights the run with
    the milestones. A run with `pretrain` states in `pretrain.initial` what else it takes over."""

    step: int = identity(None, minimum=1)
    """The milestone of that run: its number of steps, or of epochs."""

    sweep: str = name(None)
    """In place of `run` and `step`: a sweep with `best`, whose best run this run starts from."""

    path: str = identity(None)
    """In place of `run` and `step`: the directory of a Hugging Face model, or a checkpoint of ibm-fms or fms-fsdp (a
    directory or file), relative to the working directory. A tuned run then needs `corpus`, which must have the model's
    tokenizer."""

    config: str = identity(None)
    """For a tuned run whose `path` is a checkpoint of ibm-fms or fms-fsdp: the config.json of its model. A run with
    `pretrain` has the config in `model`."""


@dataclass(frozen=True, kw_only=True)
class Pretrain(PretrainRecipe):
    """The recipe of a pretraining without its model, which stands beside it."""

    model: ClassVar[None] = None
    milestones: list[int] = horizon(None, minimum=1, entries=1)
    weights: dict[str, float] = identity(None, above=0)
    """Share of the tokens per source, by name: any positive numbers, rounded to 1/4096 of their sum. Default: all
    sources of the corpus, in equal shares."""


@dataclass(frozen=True, kw_only=True)
class Finetune(FinetuneRecipe):
    """The recipe of a fine-tuning."""

    milestones: list[int] = horizon(None, minimum=1, entries=1)


TRAININGS = {"pretrain": Pretrain, "finetune": Finetune, "average_weights": AverageWeightsRecipe}
"""The recipes by which the model of a run is made, which has one of them."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run. Its trainer reads `pretrain` or `finetune`, other stages the keys around it.

    The workflow makes a job per entry of `milestones`.
    """

    from_: str = name(None)
    """The run to copy. The keys beside `from` override its own: mappings are merged, lists and other values are
    replaced, and `null` removes a key. See docs/sweeps.md."""

    corpus: str = name(None)
    """The corpus to train on (default: the only one); a tuned run has that of its initial run."""

    model: Model = identity(None)
    """The shape of the model."""

    pretrain: Pretrain = identity(None, needs=("model",))
    """The training on a corpus."""

    seeds: list[int] = workflow(None, minimum=0, entries=2, unique=True)
    """Seeds to train it with, which tell the noise of a run: it has the first one, and a run NAME-seed_S each other.
    Runs that are `from` it do not take them over. Default: one run, with its `seed`."""

    average: int = workflow(None, minimum=2)
    """Number of its last milestones whose mean scores tables of runs show, in place of the scores of the last
    one: neighbouring checkpoints differ by noise. Default: the last one's. See docs/sweeps.md."""

    initial: Initial = identity(None)
    """The model that the run starts from."""

    finetune: Finetune = identity(None, needs=("initial",), like="pretrain")
    """The training of a tuned run."""

    average_weights: AverageWeightsRecipe = identity(None, needs=("initial",))
    """In place of a training: the mean of the weights of milestones of the initial run."""

    convert: ConvertRecipe = identity(None)
    """The export and its checks."""

    card: DescribeRecipe = identity(None)
    """The author's part of the model card."""

    suites: list[str] = name(None, entries=1, unique=True)
    """The suites that score every milestone (default: the only one); of a tuned run also the milestone that it was
    tuned from."""


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Runs by a grid of values."""

    base: str = name()
    """The run that each run of the sweep is with other values."""

    grid: dict[str, list[Any]] = workflow(entries=1)
    """Values of each key of a run, as `pretrain.optimizer.learning_rate: [1e-3, 3e-3]`; `seed` is short for
    `pretrain.seed` or `finetune.seed`. One run per combination."""

    best: BestRecipe = identity(None)
    """The score by which its best run is found."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """A size of a ladder, and what is not the target's for it."""

    parameters: float = workflow(None, above=0)
    """Number of parameters, embedding and head included."""

    hidden_size: int = workflow(None, minimum=1)
    """Width of the model; with `num_hidden_layers`, in place of `parameters`."""

    num_hidden_layers: int = workflow(None, minimum=1)
    """Number of its blocks."""

    num_attention_heads: int = workflow(None, minimum=1)
    """Default: as many as keep the target's head size."""

    num_key_value_heads: int = workflow(None, minimum=1)
    """Default: as many as keep the target's query heads per key-value head."""

    head_dim: int = workflow(None, minimum=1)
    """Default: the target's, if the config has it."""

    intermediate_size: int = workflow(None, minimum=1)
    """Default: the target's ratio to `hidden_size`, as a multiple of 8."""

    global_batch_size: int = workflow(None, minimum=1)
    """Default: the target's, halved until it is near (N / N of the target)^(2/3) of it."""

    learning_rate: float = workflow(None, above=0)
    """Peak learning rate. Default: the target's times (N / N of the target)^(-1/3)."""


@dataclass(frozen=True, kw_only=True)
class Ladder:
    """Small models of a run's family. Only the workflow reads it: its runs are ordinary ones."""

    target: str = name()
    """The run whose loss is predicted: one with `pretrain`, without `initial`."""

    sizes: list[float | Size] = workflow(entries=3, above=0)
    """Its sizes, at least three, each smaller than the target: a number of parameters (embedding and head included),
    for which the nearest model of the target's proportions is taken, or a group of keys."""

    tokens_per_parameter: list[float] = workflow(entries=2, unique=True, above=0)
    """Tokens per parameter, at least two. Each size is trained once per entry, with a schedule that ends there."""

    horizon_exponent: float = workflow(None, minimum=0)
    """Power by which the peak learning rate falls with the number of tokens: of a size, a run with R tokens per
    parameter has (R of the target / R)^power times the rate that its size has at the target's tokens per parameter.
    Marin's Delphi ladder has 0.3. Default: 0, all runs of a size have one rate."""

    vocab_size: int = workflow(None, minimum=1)
    """Number of token ids: required with a custom tokenizer, not allowed otherwise."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """The config of Caravan."""

    sources: dict[str, SourceRecipe] = section()
    """Text, or examples to fine-tune on."""

    classifiers: dict[str, ClassifierRecipe] = section(None)
    """Classifiers that tell good text from bad, for `filters.quality` of sources: see
    [cleaning](../docs/cleaning.md#a-quality-classifier)."""

    tokenizers: dict[str, Tokenizer] = section()
    """Tokenizers, trained or custom."""

    corpora: dict[str, Corpus] = section()
    """Sources, tokenized and cut into shards."""

    suites: dict[str, Suite] = section()
    """Tasks that a model is scored by."""

    runs: dict[str, Run] = section()
    """Models, each trained on a corpus (`pretrain`) or on conversations, prompts and completions, or text
    (`finetune`)."""

    sweeps: dict[str, Sweep] = section(None)
    """Runs by a grid of values: see docs/sweeps.md."""

    ladders: dict[str, Ladder] = section(None)
    """Small models of a run's family, from which its loss is predicted before it is trained: see
    [ladders](../docs/ladders.md)."""

    baselines: dict[str, Baseline] = section(None)
    """Other models that the suites of all runs score, to compare with."""

    contamination: ContaminationRecipe = identity(None)
    """The search for contaminated items."""

    results: str = workflow("results")
    """The directory of all results, logs and the summary, relative to the working directory or absolute; two configs
    with one each do not overwrite each other. No result depends on its name, and it may be moved."""

    tune: bool = workflow(False)
    """Include the tuned runs in `all`, `models`, `exports`, `scores` and `report`; the target `tuned` makes them in any
    case."""

    rerun_on_code: bool = workflow(False)
    """Rerun a stage before `convert`, training included, when its code changes. Comments never count. Switching it on
    reruns everything once. Later stages always follow their code."""
