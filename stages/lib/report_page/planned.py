"""The plan of each run beside what came out: tokens, memory, speed, hours, jobs, checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from statistics import median
from typing import Any

from stages.lib.report.curves import Curves
from stages.lib.report_page.inputs import PageInputs
from stages.lib.report_page.section import Cell, Notes, Section, Table

CATEGORY = "Training"
HOUR = 3600
TITLES = (
    *("run", "parameters", "tokens", "peak memory per rank", "tokens/s per rank", "hours", "rank-hours", "jobs"),
    "checkpoint",
)
CAPTION = (
    "What came out; below it the plan by the target plan, and how far off it was. Memory is that of the first "
    "rank: what it allocated on a GPU; on a CPU all that is resident, with Python and its libraries, beside a plan of "
    "tensors alone. Tokens per second "
    "are the median over the steps; hours are the sum of the steps, without starts and saves."
)

Figures = Mapping[str, Any]


def section(inputs: PageInputs) -> Section | None:
    """Return the section on the plans; None without one."""
    known = {name: plan for name, plan in inputs.plan.items() if name in inputs.last_models()}
    rows, unknown = [], []
    for name, plan in known.items():
        if "unknown" in plan:
            unknown.append(f"{name} has no plan: {plan['unknown']}")
        else:
            rows.append([name, *_cells(inputs, name, plan)])
    if not known:
        return None
    table = [Table(titles=TITLES, rows=rows, caption=CAPTION, numeric=range(1, len(TITLES)))] if rows else []
    notes = [Notes(lines=unknown)] if unknown else []
    return Section(category=CATEGORY, title="Plan against actual", blocks=[*table, *notes])


def _cells(inputs: PageInputs, name: str, plan: Figures) -> list[str | Cell]:
    model, curves = inputs.last_models()[name], inputs.curves.get(name) or Curves(train=[], validation={})
    time, batch = plan.get("time") or {}, plan["batch"]
    seconds = time["step_seconds"] * batch["steps"] if "step_seconds" in time and batch["steps"] else None
    ranks = curves.world_size or batch["ranks"]
    rates = [rate / ranks for _, rate, _ in curves.figures.get("tokens_per_second", ())]
    return [
        _cell(inputs.parameters(name), plan["model"]["parameters"], "{:,}"),
        _cell(model.identity["tokens"], batch["tokens"], "{:,}"),
        _memory(curves.peak_bytes, plan["memory"]),
        _cell(median(rates) if rates else None, time.get("tokens_per_second"), "{:,.0f}"),
        _cell(curves.seconds, seconds, "{:,.2f}", HOUR),
        _cell(curves.seconds and curves.seconds * ranks, seconds and seconds * batch["ranks"], "{:,.2f}", HOUR),
        _cell(curves.health.jobs or None, time.get("jobs"), "{:,}"),
        _cell(_bytes(model.identity["outputs"]), plan["disk"]["checkpoint_bytes"], "{:,.3f} GB", 1e9),
    ]


def _memory(actual: float | None, plan: Figures) -> Cell:
    """Return the peak memory of a rank; the plan is of tensors, which are not all that is resident on a CPU."""
    cell = _cell(actual, plan["peak_bytes"], "{:,.2f} GB", 1e9)
    return cell if "device" in plan else replace(cell, note=f"plan {plan['peak_bytes'] / 1e9:,.2f} GB")


def _bytes(outputs: Mapping[str, Figures]) -> int | None:
    """Return the bytes of a checkpoint's files; None if the manifest lists none."""
    return sum(file["bytes"] for file in outputs.values()) or None


def _cell(actual: float | None, planned: float | None, form: str, unit: float = 1) -> Cell:
    """Return what came out, with the plan as a note. `form`: of a number in `unit`."""
    text = "-" if actual is None else form.format(actual / unit if unit != 1 else actual)
    if planned is None:
        return Cell(text=text)
    if actual == planned:
        return Cell(text=text, note="as planned")
    off = f", {actual / planned - 1:+.1%}" if actual and planned else ""
    return Cell(text=text, note=f"plan {form.format(planned / unit if unit != 1 else planned)}{off}")
