"""The three figures of the report: loss, bits per byte and accuracy against training tokens."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stages.lib.report import figures
from stages.lib.report.curves import Curves
from stages.lib.report.figures import Line, Point
from stages.lib.report.references import beside, trivial
from stages.lib.report.scores import ScoreRow
from stages.lib.scoring.tasks import local_tasks

ACCURACIES = ("acc", "acc_mutual_info")


@dataclass(frozen=True, kw_only=True)
class ScoreFigure:
    """A figure against training tokens: lines, and `levels`, {label: value} of horizontal lines."""

    name: str
    title: str
    y_label: str
    lines: list[Line]
    levels: dict[str, float] = field(default_factory=dict)


def summary_figures(
    rows: Sequence[ScoreRow], references: Sequence[ScoreRow], curves: Mapping[str, Curves]
) -> list[ScoreFigure]:
    """Return loss, bits per byte and accuracy. `rows`: scores, with the tokens of the models before added."""
    bits = [row for row in rows if row["metric"] == "bits_per_byte" and local_tasks.find(row["task"]) is not None]
    accuracy = [row for metric in ACCURACIES for row in rows if row["metric"] == metric]
    tasks = [local_tasks.find(row["task"]) for row in rows]
    chances = sorted({task.chance for task in tasks if task is not None and task.chance is not None})
    levels = {f"chance ({chance:g})": chance for chance in chances} | levels_of(accuracy, references)
    colors = source_colors(curves)
    baselines = levels_of(bits, references, with_trivial=False)  # counted bytes would need twice the height
    return [
        ScoreFigure(name="loss", title="Loss", y_label="nats per token", lines=loss_lines(curves)),
        ScoreFigure(
            name="bits_per_byte",
            title="Validation text",
            y_label="bits per byte",
            lines=score_lines(bits, colors),
            levels=baselines,
        ),
        ScoreFigure(
            name="accuracy",
            title="Accuracy",
            y_label="accuracy",
            lines=score_lines(accuracy, colors),
            levels=levels,
        ),
    ]


def draw(directory: Path, drawn: Iterable[ScoreFigure]) -> list[Path]:
    """Draw figures as SVG files; returns their paths."""
    paths = []
    for figure in drawn:
        paths.append(directory / f"{figure.name}.svg")
        figures.draw(paths[-1], figure.title, figure.y_label, figure.lines, figure.levels)
    return paths


def levels_of(rows: Sequence[ScoreRow], references: Sequence[ScoreRow], with_trivial: bool = True) -> dict[str, float]:
    """Return {label: score} of each task's baselines, and of its best trivial reader."""
    levels = {}
    for row in {row["task"]: row for row in rows}.values():
        found = beside(row, references)
        if len({other["corpus"] for other in found}) > 1:
            continue  # a line could be of either
        readers = trivial(found)
        shown = [other for other in found if other not in readers] + readers[:with_trivial]
        levels |= {f"{other['run']}, {row['task']}": other["value"] for other in shown}
    return levels


def loss_lines(curves: Mapping[str, Curves]) -> list[Line]:
    """Return the lines of training and validation loss of all runs: a color per source, a dash per run."""
    lines, colors = [], source_colors(curves)
    for run_name, curve in curves.items():
        if curve.train:
            label = f"{run_name}, training"
            neutral = figures.NEUTRAL
            lines.append(
                Line(label=label, group=run_name, part="training", points=curve.train, marked=False, color=neutral)
            )
        for source, of_texts in sorted(curve.validation.items()):
            for number, points in enumerate(of_texts, 1):
                label = f"{run_name}, validation {source}" + (f", text {number}" if len(of_texts) > 1 else "")
                lines.append(Line(label=label, group=run_name, part=source, points=points, color=colors[source]))
    return lines


def source_colors(curves: Mapping[str, Curves]) -> dict[str, int]:
    """Return {source: number of its color}, the same in each chart and bar of the report."""
    sources = {source for curve in curves.values() for source in (*curve.validation, *curve.drawn)}
    return {source: number for number, source in enumerate(sorted(sources))}


def score_lines(rows: Iterable[ScoreRow], colors: Mapping[str, int]) -> list[Line]:
    """Return a line per run and task: scores against tokens. `colors`: those of sources, which their tasks have too."""
    points: defaultdict[tuple[str, str, str], list[Point]] = defaultdict(list)
    for row in rows:
        if row["value"] is not None:
            points[row["metric"], row["run"], row["task"]].append((row["tokens"], row["value"], row["stderr"]))
    of_task: dict[str, int] = {}
    for _, _, task in points:
        local, name = local_tasks.find(task), task.rpartition("/")[2]
        color = None if local is None else colors.get(name.removeprefix(f"{local.name}_"))
        free = next(number for number in range(len(of_task) + 1) if number not in of_task.values())
        of_task.setdefault(task, free if color is None or color in of_task.values() else color)
    return [
        Line(label=f"{run_name}, {task}", group=run_name, part=task, points=found, color=of_task[task])
        for (_, run_name, task), found in points.items()
    ]
