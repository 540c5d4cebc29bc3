"""Predict the validation loss of a model from a ladder of smaller ones, before it is trained.

    python -m stages.predict --models results/runs/tiny-*/models/*.json --corpus results/tokens/main/manifest.json \\
        --recipe recipe.json --output results/ladders/tiny.json

The law L(N, D) = E + A / N^alpha + B / D^beta is fitted to the ladder's models, and gives the target's loss, in
nats per token and in bits per byte, with 95% intervals. N is the number of parameters, embedding and head included (of
experts those that a token passes through), D the number of tokens. The inputs are the ladder's models alone: training
the target changes nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stages.lib import files, manifest, stage
from stages.lib import recipe as recipes
from stages.lib.huggingface import config_json
from stages.lib.log import logger
from stages.lib.manifest_types import PredictionIdentity
from stages.lib.model.architectures import ARCHITECTURES
from stages.lib.model.flops import active_count
from stages.lib.model.model_recipe import ModelRecipe
from stages.lib.recipe import identity
from stages.lib.scaling_law.rungs import NAMES, mean_of_sources, of_other_text, outside, read_rungs, repeated


@dataclass(frozen=True, kw_only=True)
class PredictRecipe:
    """The target of a ladder."""

    target: str = identity()
    """Name of the run whose loss is predicted."""

    model: ModelRecipe = identity(variants=ARCHITECTURES)
    """The target's configuration."""

    tokens: int = identity(minimum=1)
    """Number of tokens on which the target is trained."""

    weights: dict[str, float] = identity(above=0)
    """Share of each source in the target's text: its validation loss is the mean over the sources by these weights."""


def run(arguments: argparse.Namespace, recipe: PredictRecipe) -> None:
    """Fit the law to each measure, and write the prediction."""
    from stages.lib.scaling_law.law import curve, predict, result

    files.clear_leftovers(arguments.output)
    clock = manifest.Clock(arguments.code)
    corpus = manifest.read(arguments.corpus, "index")
    models = [manifest.read(path, "pretrain") for path in arguments.models]
    rungs = read_rungs(models, corpus)
    parameters = active_count(recipe.model, corpus.identity["tokenizer"]["vocab_size"])
    measures = {name: mean_of_sources(rungs, recipe.weights, name) for name in NAMES}
    remarks = [*repeated(rungs, corpus), *outside(rungs, parameters, recipe.tokens)]
    for sentence in [*of_other_text(rungs, recipe.weights), *remarks]:
        logger.warning("%s", sentence)
    predictions = {name: predict(rungs, values) for name, values in measures.items()}
    results = {name: result(made, parameters, recipe.tokens) for name, made in predictions.items()}
    for name, found in results.items():
        logger.info("%s of %s: %.4g (%.4g to %.4g)", name, recipe.target, found["value"], found["low"], found["high"])
    known: PredictionIdentity = {
        "recipe": recipes.written(recipe, "identity"),
        "corpus": corpus.digest,
        "models": {rung.name: made.digest for rung, made in zip(rungs, models, strict=True)},
        "points": [
            {"run": rung.name, "parameters": rung.parameters, "tokens": rung.tokens}
            | {name: values[number] for name, values in measures.items()}
            for number, rung in enumerate(rungs)
        ],
        "parameters": parameters,
        "results": results,
        "curve": curve(predictions["loss"], parameters, recipe.tokens),
    }
    manifest.write(arguments.output, arguments.stage_name, known, clock.record())


def main(argv: Sequence[str] | None = None) -> int:
    """Run the stage; returns its exit code."""
    parser = stage.parser("stages.predict", __doc__, PredictRecipe)
    parser.add_argument(
        "--models", type=Path, nargs="+", required=True, metavar="MANIFEST", help="last milestones of the ladder's runs"
    )
    parser.add_argument("--corpus", type=Path, required=True, metavar="MANIFEST", help="the corpus of all runs")
    parser.add_argument("--model-config", type=Path, help="config.json of the target; recipe key model overrides it")
    parser.add_argument("--output", type=Path, required=True, metavar="MANIFEST", help="the prediction to write")
    return stage.execute(parser, run, argv, config_json.keys_of_option)


if __name__ == "__main__":
    stage.leave(main())
