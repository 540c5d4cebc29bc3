"""Training over time: loss, learning rate, grad norm, throughput, MFU and health; plans and predictions beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from statistics import median
from typing import Any

from stages.lib.manifest import PredictionManifest
from stages.lib.pages.inputs import ReportInputs, training_chart
from stages.lib.render.chart import Chart, Line, Point
from stages.lib.render.page import Notes, Section
from stages.lib.render.table import Cell, Table
from stages.lib.results.curves import SPIKE, WINDOW, Curves
from stages.lib.scaling_law import outcome
from stages.lib.space import amount

CATEGORY = "Training"
FIGURES = {
    "learning_rate": ("Learning rate", "learning rate", ""),
    "grad_norm": ("Grad norm", "grad norm", "Before clipping. Of several steps the largest is shown."),
    "tokens_per_second": ("Throughput", "tokens per second", "Over all ranks."),
    "mfu": ("MFU", "model FLOPs utilization", "FLOPs of the model per second, as a share of the device's peak."),
}


def section(inputs: ReportInputs) -> Section | None:
    """Return the section on the training; None without a curve."""
    return Section.of(CATEGORY, "Training", [inputs.charts["loss"], *_figures(inputs), health(inputs)])


def _figures(inputs: ReportInputs) -> Iterator[Chart]:
    for name, (title, y_label, caption) in FIGURES.items():
        lines = [
            Line(label=run, group=run, part=name, points=curves.figures[name], marked=False)
            for run, curves in inputs.curves.items()
            if curves.figures.get(name)
        ]
        yield training_chart(inputs.curves, title, y_label, lines, caption)


HEALTH = ("run", "jobs", "restarts", "steps skipped", "rollbacks", "hangs", "loss spikes")
STEPS = 8  # spikes whose steps are named


def health(inputs: ReportInputs) -> Table:
    """Return a table of the health of all runs."""
    rows: list[list[str | Cell]] = []
    for name, curves in inputs.curves.items():
        of_run = curves.health
        counts = [of_run.jobs, len(of_run.restarts)]
        counts += [of_run.counts.get(kind, 0) for kind in ("step skipped", "rollback", "hang")]
        steps = ", ".join(f"{step:,}" for step in of_run.spikes[:STEPS]) + ", ..." * (len(of_run.spikes) > STEPS)
        spikes = Cell(text=f"{len(of_run.spikes):,}", note=steps and f"at {steps}")
        rows.append([name, *(f"{count:,}" for count in counts), spikes])
    caption = (
        "Health. A restart is a resume after a job that did not reach its milestone; a spike is a loss more than "
        f"{SPIKE:g} standard deviations above the mean of the {WINDOW} steps before it."
    )
    return Table(titles=HEALTH, rows=rows, caption=caption, numeric=range(1, len(HEALTH)))


PLAN = (
    *("run", "parameters", "tokens", "peak memory per rank", "tokens/s per rank", "hours", "rank-hours", "jobs"),
    "checkpoint",
)
PLAN_CAPTION = (
    "What came out; below it the plan by the target plan, and how far off it was. Memory is that of the first "
    "rank: what it allocated on a GPU; on a CPU all that is resident, with Python and its libraries, beside a plan of "
    "tensors alone. Tokens per second "
    "are the median over the steps; hours are the sum of the steps, without starts and saves."
)

Figures = Mapping[str, Any]


def plans(inputs: ReportInputs) -> Section | None:
    """Return the section on the plans; None without one."""
    rows, unknown = [], []
    models = inputs.results.last_models()
    for name, plan in inputs.plan.items():
        if name not in models:
            continue
        if "unknown" in plan:
            unknown.append(f"{name} has no plan: {plan['unknown']}")
        else:
            rows.append([name, *_plan_cells(inputs, name, plan)])
    table = Table(titles=PLAN, rows=rows, caption=PLAN_CAPTION, numeric=range(1, len(PLAN)))
    return Section.of(CATEGORY, "Plan against actual", [table, Notes(lines=unknown)])


def _plan_cells(inputs: ReportInputs, name: str, plan: Figures) -> list[str | Cell]:
    model, curves = inputs.results.last_models()[name], inputs.curves.get(name) or Curves(train=[], validation={})
    time, batch = plan.get("time") or {}, plan["batch"]
    seconds = time["step_seconds"] * batch["steps"] if "step_seconds" in time and batch["steps"] else None
    ranks = curves.world_size or batch["ranks"]
    checkpoint = sum(file["bytes"] for file in model.identity["outputs"].values())
    memory = _cell(curves.peak_bytes, plan["memory"]["peak_bytes"], amount)
    if "device" not in plan["memory"]:  # a plan of tensors alone, beside all that is resident on a CPU
        memory = replace(memory, note=f"plan {amount(plan['memory']['peak_bytes'])}")
    rates = [rate / ranks for _, rate, _ in curves.figures.get("tokens_per_second", ())]
    return [
        _cell(inputs.parameters(name), plan["model"]["parameters"], "{:,.0f}".format),
        _cell(model.identity["tokens"], batch["tokens"], "{:,.0f}".format),
        memory,
        _cell(median(rates) if rates else None, time.get("tokens_per_second"), "{:,.0f}".format),
        _cell(curves.seconds, seconds, _hours),
        _cell(curves.seconds and curves.seconds * ranks, seconds and seconds * batch["ranks"], _hours),
        _cell(curves.health.jobs or None, time.get("jobs"), "{:,.0f}".format),
        _cell(checkpoint or None, plan["disk"]["checkpoint_bytes"], amount),
    ]


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:,.2f}"


def _cell(actual: float | None, planned: float | None, form: Callable[[float], str]) -> Cell:
    """Return what came out, with the plan as a note."""
    text = "-" if actual is None else form(actual)
    if planned is None:
        return Cell(text=text)
    if actual == planned:
        return Cell(text=text, note="as planned")
    off = f", {actual / planned - 1:+.1%}" if actual and planned else ""
    return Cell(text=text, note=f"plan {form(planned)}{off}")


LADDER = (
    *("ladder", "target", "measure", "predicted", "low", "high", "measured", "off by", "inside the interval"),
    *outcome.HELD_OUT.values(),
)
SAME = 1.1
"""Tokens per parameter that differ by less are the same: a run has a whole number of steps."""

LADDER_CAPTION = (
    "Predictions of runs from smaller ones: value and interval, and what the trained run has. A measured value is that "
    "of the validation text at the predicted number of tokens. Leaving out: how far off the law of the other points is."
)


def ladders(inputs: ReportInputs) -> Section | None:
    """Return the section on ladders; None without one."""
    rows: list[list[str]] = []
    charts, registered = [], []
    for prediction in inputs.predictions:
        registered.append(f"{prediction.path.stem}: {outcome.registered(prediction, inputs.results.models)}")
        measured = outcome.measured(prediction, inputs.results.models)
        rows += [_ladder_cells(row) for row in outcome.rows(prediction, measured)]
        charts.append(_ladder_chart(prediction, measured))
    table = Table(titles=LADDER, rows=rows, caption=LADDER_CAPTION, numeric=range(3, 8))
    return Section.of(CATEGORY, "Ladders", [table, Notes(lines=registered), *charts])


def _ladder_cells(row: Mapping[str, Any]) -> list[str]:
    outcome_cells = ["not trained yet", "-", "-"]
    if "measured" in row:
        outcome_cells = [f"{row['measured']:.3f}", f"{row['error']:+.1%}", "yes" if row["inside"] else "no"]
    numbers = [f"{row[name]:.3f}" for name in ("value", "low", "high")]
    errors = [row["held_out"].get(name) for name in outcome.HELD_OUT]
    held_out = ["-" if error is None else f"{error:.2%}" for error in errors]
    return [row["ladder"], row["target"], outcome.NAMES[row["measure"]], *numbers, *outcome_cells, *held_out]


def _ladder_chart(prediction: PredictionManifest, measured: Mapping[str, float]) -> Chart:
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
        lines=[*ladder_lines(figure), *_law(figure, level), *_target(figure)],
        caption=caption,
        log_tokens=True,
    )


def ladder_lines(figure: Mapping[str, Any]) -> Iterator[Line]:
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
