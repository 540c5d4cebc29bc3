"""The part of a card on the training data: sources, licenses, shares, filters."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import urlsplit

from stages.lib import recipe as recipes
from stages.lib.card.inputs import CardInputs
from stages.lib.card.markdown import code, escaped, listed, table
from stages.lib.card.training_history import TrainingHistory
from stages.lib.sources.source import SourceRecipe
from stages.lib.space import amount

NOT_STATED = "not stated"
HUB_DATASET = re.compile(r"hf://datasets/([^/@]+/[^/@]+)")
TITLES = ("source", "kind", "license", "share of training tokens", "tokens drawn", "epochs", "in the training split")


def recipe_of(inputs: CardInputs, source: str) -> SourceRecipe:
    """Return the recipe of a source."""
    return recipes.load(SourceRecipe, inputs.lists[source].identity["recipe"], f"sources.{source}")


def hub_datasets(inputs: CardInputs) -> list[str]:
    """Return the names of the Hub's data sets among the sources, each once."""
    paths = [path for source in inputs.lists for path in recipe_of(inputs, source).paths]
    return list(dict.fromkeys(found[1] for path in paths if (found := HUB_DATASET.match(path))))


def lines(inputs: CardInputs, training: TrainingHistory) -> list[str]:
    """Return the lines of the section."""
    shares = shares_of(inputs, training)
    titles = TITLES[:-1] if inputs.is_tuned else TITLES  # the corpus counts its own documents alone
    rows = [_row(inputs, training, source, shares)[: len(titles)] for source in sources_of(inputs)]
    return ["## Data", *_introduction(inputs), *table(titles, rows, "   rrr"), *_details(inputs), ""]


def sources_of(inputs: CardInputs) -> list[str]:
    """Return the sources: those that it was fine-tuned on, or those of the corpus."""
    return inputs.tuned_on or [*inputs.corpus.identity["sources"]]


def shares_of(inputs: CardInputs, training: TrainingHistory) -> dict[str, float]:
    """Return {source: its share of the tokens that were drawn}, by the weights if the run's metrics are gone."""
    drawn: dict[str, float] = dict(training.drawn)
    if not drawn:
        stages = inputs.model.record.get("data", {}).get("mixture", [])
        drawn = stages[0]["slots"] if len(stages) == 1 else {}
    total = sum(drawn.values())
    return {source: number / total for source, number in drawn.items()} if total else {}


def _introduction(inputs: CardInputs) -> list[str]:
    if inputs.is_tuned:
        how = " by direct preference optimization" if "dpo" in inputs.recipe else ""
        text = listed(inputs.corpus.identity["sources"])
        return [
            "",
            f"Fine-tuned on {listed(inputs.tuned_on)}{how}. What the model before was trained on is not listed here. "
            f"Validation text of {text} checked the export, and scored it where a task reads such text.",
        ]
    initial = inputs.recipe.get("initial", {})
    if initial.get("data") == "continue":
        return ["", "Tokens drawn include those of the training that this one continues."]
    return []


def _row(inputs: CardInputs, training: TrainingHistory, source: str, shares: dict[str, float]) -> list[str]:
    return [
        code(source),
        code(recipe_of(inputs, source).kind),
        escaped(inputs.licenses.get(source, NOT_STATED)),
        f"{shares[source]:.1%}" if source in shares else "-",
        f"{training.drawn[source]:,}" if source in training.drawn else "-",
        f"{training.epochs[source]:.3g}" if source in training.epochs else "-",
        _split(inputs.corpus.identity["sources"].get(source, {}).get("train")),
    ]


def _split(split: dict[str, Any] | None) -> str:
    if split is None:
        return "-"
    return f"{split['documents']:,} documents, {split['tokens']:,} tokens, {amount(split['text_bytes'])}"


def _details(inputs: CardInputs) -> Iterator[str]:
    for source in sources_of(inputs):
        sentences = [*_sentences(inputs, source)]
        if sentences:
            yield f"- {code(source)}: {'; '.join(sentences)}."


def _sentences(inputs: CardInputs, source: str) -> Iterable[str]:
    recipe = recipe_of(inputs, source)
    places = [shown for path in recipe.paths if (shown := public(path))]
    if places:
        yield f"read from {', '.join(map(code, places))}"
    filters = {field.name: getattr(recipe.filters, field.name) for field in dataclasses.fields(recipe.filters)}
    used = {name: value for name, value in filters.items() if value is not None}
    if used:
        yield f"filtered by {', '.join(code(f'{name}: {value}') for name, value in used.items())}"
    dropped = inputs.corpus.record.get("dropped", {}).get(source, {})
    if dropped:
        reasons = ", ".join(f"{number:,} {escaped(reason)}" for reason, number in dropped.items())
        yield f"malformed or filtered: {reasons}"
    key = f", by the field {code(recipe.split_field)}" if recipe.split_field else ""
    yield f"{100 * recipe.validation:.3g}% of it is the validation split{key}"


def public(path: str) -> str | None:
    """Return the public address of a source's path, without its query; None for other paths.

    Local paths and buckets tell of a site, and readers of the card cannot read them.
    """
    if path.startswith("hf://"):
        return path
    url = urlsplit(path)
    return f"{url.scheme}://{url.hostname}{url.path}" if url.scheme in ("http", "https") else None
