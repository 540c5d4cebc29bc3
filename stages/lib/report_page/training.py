"""Training over time: loss, learning rate, grad norm, throughput and MFU, with restarts and rollbacks marked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from stages.lib.report.figures import Line
from stages.lib.report_page import health_table
from stages.lib.report_page.inputs import PageInputs
from stages.lib.report_page.section import Block, Chart, Section

CATEGORY = "Training"
LOSS = (
    "Losses of runs with different tokenizers are not comparable; scores in bits per byte are. A validation loss is of "
    "windows of the validation split; where a run changed them, each text has a line. The loss of a tuned run is that "
    "of its targets, and its line begins at the tokens of the model that it was tuned from. A run on preferences (DPO) "
    "has no line: its loss is per pair."
)
FIGURES = {
    "learning_rate": ("Learning rate", "learning rate", ""),
    "grad_norm": ("Grad norm", "grad norm", "Before clipping. Of several steps the largest is shown."),
    "tokens_per_second": ("Throughput", "tokens per second", "Over all ranks."),
    "mfu": ("MFU", "model FLOPs utilization", "FLOPs of the model per second, as a share of the device's peak."),
}


def section(inputs: PageInputs) -> Section | None:
    """Return the section on the training; None without a curve."""
    blocks = [*loss_charts(inputs), *_figures(inputs), *health_table.blocks(inputs)]
    return Section(category=CATEGORY, title="Training", blocks=blocks) if blocks else None


def loss_charts(inputs: PageInputs) -> Iterator[Block]:
    """Yield the chart of training and validation loss; nothing without a point."""
    for figure in inputs.figures:
        if figure.name == "loss" and figure.lines:
            yield line_chart(inputs, "Training and validation loss", figure.y_label, figure.lines, LOSS)


def _figures(inputs: PageInputs) -> Iterator[Chart]:
    for name, (title, y_label, caption) in FIGURES.items():
        lines = [
            Line(label=run, group=run, part=name, points=curves.figures[name], marked=False)
            for run, curves in inputs.curves.items()
            if curves.figures.get(name)
        ]
        if lines:
            yield line_chart(inputs, title, y_label, lines, caption)


def line_chart(inputs: PageInputs, title: str, y_label: str, lines: Sequence[Line], caption: str) -> Chart:
    """Return a chart of lines of runs, with their restarts and rollbacks marked."""
    steps = max((curves.steps_per_point for curves in inputs.curves.values()), default=1)
    marks = _marks(inputs)
    return Chart(title=title, y_label=y_label, lines=lines, caption=caption, marks=marks, steps_per_point=steps)


def _marks(inputs: PageInputs) -> Mapping[str, Mapping[str, Sequence[float]]]:
    return {
        run: {"restart": curves.health.restarts, "rollback": curves.health.rollbacks}
        for run, curves in inputs.curves.items()
        if curves.health.restarts or curves.health.rollbacks
    }
