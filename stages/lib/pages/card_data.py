"""The parts of a card on data and training: sources, licenses, shares, filters; recipe, curve, devices."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

from stages.lib import recipe as recipes
from stages.lib.pages.card_inputs import CardInputs
from stages.lib.pages.data import SourceText, most, text_of
from stages.lib.pages.inputs import shares
from stages.lib.render import numbers
from stages.lib.render.markdown import code, escaped, listed, markdown_table
from stages.lib.results.curves import Training
from stages.lib.results.run_tables import flat, value_text
from stages.lib.run_directory import history
from stages.lib.sources.source import SourceRecipe
from stages.lib.space import amount
from stages.lib.training.settings.recipe import TrainRecipe

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


def data_lines(inputs: CardInputs) -> list[str]:
    """Return the lines of the section."""
    drawn = shares_of(inputs)
    titles = TITLES[:-1] if inputs.is_tuned else TITLES  # the corpus counts its own documents alone
    rows = [_row(inputs, source, drawn)[: len(titles)] for source in sources_of(inputs)]
    return ["## Data", *_introduction(inputs), *markdown_table(titles, rows, "   rrr"), *_details(inputs), ""]


def sources_of(inputs: CardInputs) -> list[str]:
    """Return the sources: those that it was fine-tuned on, or those of the corpus."""
    return inputs.tuned_on or [*inputs.corpus.identity["sources"]]


def shares_of(inputs: CardInputs) -> dict[str, float]:
    """Return {source: its share of the tokens that were drawn}, by the weights if the run's metrics are gone."""
    drawn: dict[str, float] = dict(inputs.training.drawn)
    if not drawn:
        stages = inputs.model.record.get("data", {}).get("mixture", [])
        drawn = stages[0]["slots"] if len(stages) == 1 else {}
    return shares(drawn)


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


def _row(inputs: CardInputs, source: str, drawn: dict[str, float]) -> list[str]:
    training, in_corpus = inputs.training, "-"
    if of_source := inputs.corpus.identity["sources"].get(source):
        split = of_source["train"]
        in_corpus = f"{split['documents']:,} documents, {split['tokens']:,} tokens, {amount(split['text_bytes'])}"
    return [
        code(source),
        code(recipe_of(inputs, source).kind),
        escaped(inputs.licenses.get(source, NOT_STATED)),
        f"{drawn[source]:.1%}" if source in drawn else "-",
        f"{training.drawn[source]:,}" if source in training.drawn else "-",
        f"{training.epochs[source]:.3g}" if source in training.epochs else "-",
        in_corpus,
    ]


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
    used = recipes.written(recipe.filters, "identity")
    if used:
        yield f"filtered by {', '.join(code(f'{key}: {value_text(value)}') for key, value in flat(used).items())}"
    if source in inputs.corpus.identity["sources"]:
        yield from _of_text(text_of(inputs.corpus, source))
    key = f", by the field {code(recipe.split_field)}" if recipe.split_field else ""
    yield f"{100 * recipe.validation:.3g}% of it is the validation split{key}"


def _of_text(text: SourceText) -> Iterator[str]:
    """Yield what became of a source's text. No example: a card is published, and some text was dropped for a reason."""
    if text.dropped:
        size = "" if text.bytes_before is None else f" with {amount(text.bytes_before)} of text"
        yield f"{text.records:,} records{size} were read, and {text.documents:,} documents stay"
        reasons = ", ".join(f"{number:,} {escaped(reason)}" for reason, number in text.dropped.items())
        yield f"malformed or filtered: {reasons}"
    for kind, counts in text.repeats.items():
        of_others = {name: number for name, number in counts.items() if number}
        if of_others:
            named = ", ".join(f"{number:,} of {code(name)}" for name, number in of_others.items())
            yield f"{'near duplicates' if kind.startswith('near') else 'exact duplicates'}: {named}"
    if text.languages:
        yield f"languages: {', '.join(f'{number:,} {escaped(name)}' for name, number in most(text.languages).items())}"
    if text.masked:
        yield f"masked: {', '.join(f'{number:,} {code(kind)}' for kind, number in text.masked.items())}"
    if text.bytes_per_token:
        yield f"{text.bytes_per_token:.2f} bytes per token"


def public(path: str) -> str | None:
    """Return the public address of a source's path, without its query; None for other paths.

    Local paths and buckets tell of a site, and readers of the card cannot read them.
    """
    if path.startswith("hf://"):
        return path
    url = urlsplit(path)
    return f"{url.scheme}://{url.hostname}{url.path}" if url.scheme in ("http", "https") else None


CURVE_ROWS = 12


def training_lines(inputs: CardInputs) -> list[str]:
    """Return the lines of the section."""
    rows = [(code(name), code(value_text(value))) for name, value in recipe_rows(inputs)]
    unit = "that of DPO, per pair" if "dpo" in inputs.recipe else "in nats per token"
    return ["## Training", *markdown_table(("key", "value"), rows), *_curve(inputs.training, unit), *_devices(inputs)]


def recipe_rows(inputs: CardInputs) -> list[tuple[str, Any]]:
    """Return (key, value) of the recipe: optimizer, schedule and batch with their defaults, other keys if written."""
    written = {name: value for name, value in inputs.recipe.items() if name != "model"}
    known = {field.name for field in dataclasses.fields(TrainRecipe)}
    steps = inputs.model.record.get("horizon", {}).get("steps", inputs.step)
    keys = {name: value for name, value in written.items() if name in known} | {"steps": steps}
    loaded = recipes.load(TrainRecipe, keys, f"{inputs.model.path}: identity.recipe")
    rows = {"steps": steps, **dict(_identity(loaded))}
    unused = {"schedule.decay"} if loaded.schedule.kind != "wsd" else set()
    rows = {key: value for key, value in rows.items() if key not in unused and not key.startswith("loss_guard.")}
    return [*(rows | flat(written)).items()]


def _identity(recipe: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) of the identity fields that are set."""
    for field in dataclasses.fields(recipe):
        value = getattr(recipe, field.name)
        if dataclasses.is_dataclass(value):
            yield from _identity(value, f"{prefix}{field.name}.")
        elif field.metadata["kind"] == "identity" and value is not None:
            yield f"{prefix}{field.name}", value


def _curve(training: Training, unit: str) -> list[str]:
    """Return a table of training loss and validation scores, thinned to CURVE_ROWS rows with the first and last."""
    steps = sorted(training.validation) or sorted(training.losses)
    if not steps:
        return ["The run's metrics are not there any more, so the card has no curve.", ""]
    sources = training.sources
    titles = ["step", "tokens", "training loss"]
    titles += [f"validation loss, {escaped(source)}" for source in sources]
    titles += [f"the same in bits per byte, {escaped(source)}" for source in sources]
    rows = [_curve_row(training, step, sources) for step in thinned(steps)]
    texts = {tuple(scores.get(source, {}).get("text") for source in sources) for scores in training.validation.values()}
    other = " Rows with * have the validation loss of other text than the last row." if len(texts) > 1 else ""
    return [
        f"The loss is {unit}; the training loss is that of one step.{other}",
        *markdown_table(titles, rows, "r" * len(titles)),
    ]


def _curve_row(training: Training, step: int, sources: Sequence[str]) -> list[str]:
    scores = training.validation.get(step, {})
    cells = [training.losses.get(step)]
    cells += [scores.get(source, {}).get(name) for name in ("loss", "loss_bits_per_byte") for source in sources]
    last = training.validation[max(training.validation)] if scores else {}
    other = any(scores.get(source, {}).get("text") != last.get(source, {}).get("text") for source in sources)
    shown = ["-" if cell is None else f"{cell:.3f}" for cell in cells]
    return [f"{step:,}{' *' * other}", f"{training.tokens[step]:,}", *shown]


def thinned(steps: Sequence[int]) -> list[int]:
    """Return at most CURVE_ROWS of the steps, evenly spread, with the first and the last."""
    if len(steps) <= CURVE_ROWS:
        return list(steps)
    return [steps[round(row * (len(steps) - 1) / (CURVE_ROWS - 1))] for row in range(CURVE_ROWS)]


def _devices(inputs: CardInputs) -> Iterator[str]:
    training = inputs.training
    ranks = inputs.model.record.get("world_size")
    parts = [
        f"{numbers.three_digits(seconds / 3600)} hours on {escaped(name)}"
        for name, seconds in training.device_seconds.items()
    ]
    if parts:
        yield f"Time in training steps, summed over the ranks ({ranks} at the end): {', '.join(parts)}."
        yield ""
    if troubles := history.troubles(training.events):
        yield f"During the training: {', '.join(troubles)}."
        yield ""
