"""The part of a card on the training: recipe, curve, devices."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stages.lib import recipe as recipes
from stages.lib.card.inputs import CardInputs
from stages.lib.card.markdown import code, escaped, table
from stages.lib.card.training_history import TrainingHistory
from stages.lib.training.settings.recipe import TrainRecipe

CURVE_ROWS = 12


def lines(inputs: CardInputs, training: TrainingHistory) -> list[str]:
    """Return the lines of the section."""
    rows = [(code(name), code(_json(value))) for name, value in recipe_rows(inputs)]
    unit = "that of DPO, per pair" if "dpo" in inputs.recipe else "in nats per token"
    return ["## Training", *table(("key", "value"), rows), *_curve(training, unit), *_devices(inputs, training)]


def recipe_rows(inputs: CardInputs) -> list[tuple[str, Any]]:
    """Return (key, value) of the recipe: optimizer, schedule and batch with their defaults, other keys if written."""
    written = {name: value for name, value in inputs.recipe.items() if name != "model"}
    known = {field.name for field in dataclasses.fields(TrainRecipe)}
    steps = inputs.model.record.get("horizon", {}).get("steps", inputs.step)
    keys = {name: value for name, value in written.items() if name in known} | {"steps": steps}
    loaded = recipes.load(TrainRecipe, keys, f"{inputs.model.path}: identity.recipe")
    rows = {"steps": steps, **dict(_flat(loaded))}
    unused = {"schedule.decay"} if loaded.schedule.kind != "wsd" else set()
    rows = {key: value for key, value in rows.items() if key not in unused and not key.startswith("loss_guard.")}
    return [*(rows | _flat_data(written)).items()]


def _flat(recipe: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) of the identity fields that are set."""
    for field in dataclasses.fields(recipe):
        value = getattr(recipe, field.name)
        if dataclasses.is_dataclass(value):
            yield from _flat(value, f"{prefix}{field.name}.")
        elif field.metadata["kind"] == "identity" and value is not None:
            yield f"{prefix}{field.name}", value


def _flat_data(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in data.items():
        if isinstance(value, dict) and name != "weights":
            found |= _flat_data(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found


def _json(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _curve(training: TrainingHistory, unit: str) -> list[str]:
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
        *table(titles, rows, "r" * len(titles)),
    ]


def _curve_row(training: TrainingHistory, step: int, sources: Sequence[str]) -> list[str]:
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


def hours(seconds: float) -> str:
    """Format seconds as hours: with three digits, and all digits before the point."""
    number = seconds / 3600
    return f"{number:,.0f} hours" if number >= 100 else f"{number:.3g} hours"


def _devices(inputs: CardInputs, training: TrainingHistory) -> Iterator[str]:
    ranks = inputs.model.record.get("world_size")
    parts = [f"{hours(seconds)} on {escaped(name)}" for name, seconds in training.device_seconds.items()]
    if parts:
        yield f"Time in training steps, summed over the ranks ({ranks} at the end): {', '.join(parts)}."
        yield ""
    if training.troubles:
        yield f"During the training: {', '.join(training.troubles)}."
        yield ""
