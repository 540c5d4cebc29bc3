"""The trained models of a ladder, by their manifests: parameters, tokens, and measures on the validation split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.lib import recipe as recipes
from stages.lib.errors import UserError
from stages.lib.manifest import CorpusManifest, ModelManifest
from stages.lib.model.architectures import ARCHITECTURES
from stages.lib.model.flops import active_count
from stages.lib.model.model_recipe import ModelRecipe

NAMES = {"loss": "validation loss", "loss_bits_per_byte": "validation loss in bits per byte"}
"""{measure of a model on the validation split: its name}"""


@dataclass(frozen=True)
class Rung:
    """A trained model of a ladder. `validation`: {source: {"loss", "loss_bits_per_byte", "text"}}."""

    name: str
    path: Path
    parameters: int
    tokens: int
    validation: Mapping[str, Mapping[str, Any]]


def read_rungs(models: Sequence[ModelManifest], corpus: CorpusManifest) -> list[Rung]:
    """Return the models of a ladder. Raises UserError if one was trained on another corpus."""
    return [_read(made, corpus) for made in models]


def _read(made: ModelManifest, corpus: CorpusManifest) -> Rung:
    if made.identity["corpus"] != corpus.digest:
        raise UserError(f"{made.path} was trained on a different corpus than {corpus.path}")
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
    validation: Mapping[str, Mapping[str, Any]], weights: Mapping[str, float], measure: str, where: str
) -> float:
    """Return the mean of a measure over the sources by weight. Raises UserError if `where` lacks it of a source."""
    if missing := sorted(source for source in weights if measure not in validation.get(source, ())):
        raise UserError(
            f"{where} has no {NAMES[measure]} of source {missing[0]}; train it again on a corpus with all sources"
        )
    total = sum(weights.values())
    return sum(validation[source][measure] * weight for source, weight in weights.items()) / total


def of_other_text(rungs: Sequence[Rung], weights: Mapping[str, float]) -> list[str]:
    """Return a sentence if models of the ladder were measured on different windows of the validation split."""
    found = [[rung.validation[source].get("text") for source in sorted(weights)] for rung in rungs]
    others = [rung.name for rung, texts in zip(rungs, found, strict=True) if texts != found[0]]
    if not others:
        return []
    return [
        f"{', '.join(others)} and {rungs[0].name} were measured on different validation text, by which their losses "
        "differ too; give all runs of a ladder the same seq_len and validation.tokens"
    ]


def repeated(rungs: Sequence[Rung], corpus: CorpusManifest) -> list[str]:
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
