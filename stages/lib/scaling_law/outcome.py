"""Predictions beside what came out: rows, text, and the data of a figure. Imports no scipy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stages.lib.manifest import ModelManifest, PredictionManifest
from stages.lib.scaling_law.rungs import NAMES, weighted

Row = dict[str, Any]
HELD_OUT = {"leave_one_out": "leaving out each point", "largest_out": "leaving out the largest size"}


def measured(prediction: PredictionManifest, models: Mapping[tuple[str, int], ModelManifest]) -> dict[str, float]:
    """Return the measures of the trained target, {} before: the milestone with the predicted number of tokens.

    `models`: manifests by (run, step).
    """
    model = target_of(prediction, models)
    if model is None:
        return {}
    weights, validation = prediction.identity["recipe"]["weights"], model.record["validation"]
    return {name: weighted(validation, weights, name, str(model.path)) for name in NAMES}


def target_of(prediction: PredictionManifest, models: Mapping[tuple[str, int], ModelManifest]) -> ModelManifest | None:
    """Return the milestone of the target with the predicted number of tokens; None before it is trained."""
    recipe = prediction.identity["recipe"]
    of_target = (model for (run, _), model in models.items() if run == recipe["target"])
    return next((model for model in of_target if model.identity["tokens"] == recipe["tokens"]), None)


def rows(prediction: PredictionManifest, found: Mapping[str, float]) -> list[Row]:
    """Return a row per measure: predicted value and bounds, and with `found` the measured value and how far off."""
    made = []
    for name, result in prediction.identity["results"].items():
        row: Row = {"ladder": prediction.path.stem, "target": prediction.identity["recipe"]["target"], "measure": name}
        row |= {key: result[key] for key in ("value", "low", "high", "level")}
        row["held_out"] = result.get("held_out", {})
        if name in found:
            row["measured"] = found[name]
            row["error"] = result["value"] / found[name] - 1
            row["inside"] = result["low"] <= found[name] <= result["high"]
        made.append(row)
    return made


def sentence(row: Row) -> str:
    """Return a row as text."""
    text = (
        f"{NAMES[row['measure']]} {row['value']:.3f} predicted ({row['level']:.0%}: {row['low']:.3f} to "
        f"{row['high']:.3f})"
    )
    if "measured" not in row:
        return f"{text}, not trained yet"
    inside = "inside" if row["inside"] else "outside"
    return f"{text}, {row['measured']:.3f} measured: off by {row['error']:+.1%}, {inside} the interval"


def text(predictions: Sequence[PredictionManifest], models: Mapping[tuple[str, int], ModelManifest]) -> list[str]:
    """Return the lines of the summary on all ladders; [] without one."""
    lines = []
    for prediction in predictions:
        identity = prediction.identity
        tokens, number = identity["recipe"]["tokens"], len(identity["points"])
        target = f"{identity['recipe']['target']} ({identity['parameters']:,} parameters, {tokens:,} tokens)"
        lines.append(f"Ladder {prediction.path.stem}: {target}, from {number} smaller models")
        lines.append(f"  {registered(prediction, models)}")
        for row in rows(prediction, measured(prediction, models)):
            lines.append(f"  {sentence(row)}")
            errors = [f"{error:.2%} {HELD_OUT[name]}" for name, error in row["held_out"].items() if error is not None]
            if errors:
                lines.append(f"    the law of the other points is off by {', '.join(errors)}")
    return lines


def registered(prediction: PredictionManifest, models: Mapping[tuple[str, int], ModelManifest]) -> str:
    """Return when the forecast was made, with its digest, and when the job began that ended the target's training."""
    text = f"forecast of {prediction.record.get('started', 'unknown time')}, digest {prediction.digest[:12]}"
    target = target_of(prediction, models)
    return (
        text
        if target is None
        else f"{text}; the target's last job began {target.record.get('started', 'at an unknown time')}"
    )


def figure(prediction: PredictionManifest, found: Mapping[str, float]) -> dict[str, Any]:
    """Return the data of a figure of the loss: points, fitted curve with its band, and target.

    `points`: [{"run", "parameters", "tokens", "loss", "loss_bits_per_byte"}]; `curve`: [{"parameters", "tokens",
    "value", "low", "high"}] at the target's tokens per parameter; `target`: its parameters and tokens, and the row of
    the loss.
    """
    identity = prediction.identity
    row = next(row for row in rows(prediction, found) if row["measure"] == "loss")
    place = {"parameters": identity["parameters"], "tokens": identity["recipe"]["tokens"]}
    return {"points": identity["points"], "curve": identity["curve"], "target": place | row}
