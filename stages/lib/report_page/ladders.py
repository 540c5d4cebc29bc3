"""Ladders: the predicted validation loss of each target, and how far off the predictions were."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stages.lib.manifest import Manifest
from stages.lib.report.figures import Line, Point
from stages.lib.report_page.inputs import PageInputs
from stages.lib.report_page.section import Block, Chart, Section, Table
from stages.lib.scaling_law import outcome

CATEGORY = "Training"
TITLES = ("ladder", "target", "measure", "predicted", "low", "high", "measured", "off by", "inside the interval")
SAME = 1.1
"""Tokens per parameter that differ by less are the same: a run has a whole number of steps."""

CAPTION = (
    "Predictions of runs from smaller ones: value and interval, and what the trained run has. A measured value is that "
    "of the validation text at the predicted number of tokens."
)


def section(inputs: PageInputs) -> Section | None:
    """Return the section on ladders; None without one."""
    if not inputs.predictions:
        return None
    measured = {made.path: outcome.measured(made, inputs.results.models) for made in inputs.predictions}
    rows = [_cells(row) for made in inputs.predictions for row in outcome.rows(made, measured[made.path])]
    table = Table(titles=TITLES, rows=rows, caption=CAPTION, numeric=range(3, 8))
    blocks: list[Block] = [table, *(_chart(made, measured[made.path]) for made in inputs.predictions)]
    return Section(category=CATEGORY, title="Ladders", blocks=blocks)


def _cells(row: Mapping[str, Any]) -> list[str]:
    found = ["not trained yet", "-", "-"]
    if "measured" in row:
        found = [f"{row['measured']:.3f}", f"{row['error']:+.1%}", "yes" if row["inside"] else "no"]
    numbers = [f"{row[name]:.3f}" for name in ("value", "low", "high")]
    return [row["ladder"], row["target"], outcome.NAMES[row["measure"]], *numbers, *found]


def _chart(prediction: Manifest, measured: Mapping[str, float]) -> Chart:
    figure, name = outcome.figure(prediction, measured), prediction.path.stem
    target = figure["target"]
    level = f"{target['level']:.0%}"
    caption = (
        f"Ladder {name}: a point is a small model, a line joins models with the same tokens per parameter. The law is "
        f"drawn at the target's, {target['tokens'] / target['parameters']:.3g}, with its {level} interval."
    )
    return Chart(
        title=f"Ladder {name}: validation loss of {target['target']}",
        y_label="nats per token",
        lines=[*_ladder(figure), *_law(figure, level), *_target(figure)],
        caption=caption,
        log_tokens=True,
    )


def _ladder(figure: Mapping[str, Any]) -> Iterator[Line]:
    """Yield a line per number of tokens per parameter."""
    ratios: list[float] = []
    by_ratio: dict[float, list[Point]] = {}
    for point in sorted(figure["points"], key=_ratio):
        if not ratios or _ratio(point) > SAME * ratios[-1]:
            ratios.append(_ratio(point))
        by_ratio.setdefault(ratios[-1], []).append((point["tokens"], point["loss"], None))
    for ratio, points in by_ratio.items():
        label = f"{ratio:.2g} tokens per parameter"
        yield Line(label=label, group=label, part="models", points=sorted(points))


def _ratio(point: Mapping[str, Any]) -> float:
    return point["tokens"] / point["parameters"]


def _law(figure: Mapping[str, Any], level: str) -> Iterator[Line]:
    for key, label in {"value": "law", "low": f"{level} interval, low", "high": f"{level} interval, high"}.items():
        points: list[Point] = [(point["tokens"], point[key], None) for point in figure["curve"]]
        yield Line(label=label, group="law", part="law" if key == "value" else "interval", points=points, marked=False)


def _target(figure: Mapping[str, Any]) -> Iterator[Line]:
    target = figure["target"]
    yield Line(
        label="predicted", group="predicted", part="predicted", points=[(target["tokens"], target["value"], None)]
    )
    if "measured" in target:
        points: list[Point] = [(target["tokens"], target["measured"], None)]
        yield Line(label="measured", group="measured", part="measured", points=points)
