"""The trained models of a ladder, by their manifests: parameters, tokens, and measures on the validation split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stages.lib import recipe as recipes
from stages.lib.errors import UserError
from stages.lib.manifest import Manifest
from stages.lib.model.architectures.registry import ARCHITECTURES
from stages.lib.model.flops import active_count
from stages.lib.model.model_recipe import ModelRecipe


@dataclass(frozen=True)
class Rung:
    """A trained model of a ladder. `validation`: {source: {"loss", "bits_per_byte"}}."""

    name: str
    path: Path
    parameters: int
    tokens: int
    validation: Mapping[str, Mapping[str, float]]


def read_rungs(models: Sequence[Manifest], corpus: Manifest) -> list[Rung]:
    """Return the models of a ladder. Raises UserError if one was trained on another corpus."""
    return [_read(made, corpus) for made in models]


def _read(made: Manifest, corpus: Manifest) -> Rung:
    if made.identity["corpus"] != corpus.digest:
        raise UserError(f"{made.path} must be trained on the corpus {corpus.path}, and was trained on another")
    model: ModelRecipe = recipes.load(ARCHITECTURES, made.identity["recipe"]["model"], f"{made.path}: model")
    return Rung(
        name=made.path.parent.parent.name,
        path=made.path,
        parameters=active_count(model, corpus.identity["tokenizer"]["vocab_size"]),
        tokens=made.identity["tokens"],
        validation=made.record["validation"],
    )


def mean_of_sources(rungs: Sequence[Rung], weights: Mapping[str, float], measure: str) -> list[float]:
    """Return a measure of each model: its mean over the sources by their weights."""
    return [weighted(rung.validation, weights, measure, str(rung.path)) for rung in rungs]


def weighted(
    validation: Mapping[str, Mapping[str, float]], weights: Mapping[str, float], measure: str, where: str
) -> float:
    """Return the mean of a measure over the sources by weight. Raises UserError if `where` lacks a source."""
    if missing := sorted(set(weights) - set(validation)):
        raise UserError(f"{where} must have the validation loss of {missing[0]}, and has none")
    total = sum(weights.values())
    return sum(validation[source][measure] * weight for source, weight in weights.items()) / total


def repeated(rungs: Sequence[Rung], corpus: Manifest) -> list[str]:
    """Return a sentence if models of the ladder read their corpus more than once: repeated text teaches less."""
    available = sum(source["train"]["tokens"] for source in corpus.identity["sources"].values())
    most = max(rungs, key=lambda rung: rung.tokens)
    many = [rung for rung in rungs if rung.tokens > available]
    if not many:
        return []
    return [
        f"{len(many)} of {len(rungs)} models read more tokens than the corpus has ({available:,}), {most.name} "
        f"{most.tokens / available:.1f} times as many: the law takes repeated text for new text"
    ]


def outside(rungs: Sequence[Rung], parameters: int, tokens: int) -> list[str]:
    """Return a sentence if a target of N `parameters` and D `tokens` has other tokens per parameter than the ladder."""
    ratio, ratios = tokens / parameters, [rung.tokens / rung.parameters for rung in rungs]
    if 0.99 * min(ratios) <= ratio <= 1.01 * max(ratios):  # each run has whole steps
        return []
    return [
        f"the target has {ratio:.3g} tokens per parameter and the ladder {min(ratios):.3g} to {max(ratios):.3g}: its "
        "prediction reaches beyond the ladder in both, and its interval does not cover that"
    ]
