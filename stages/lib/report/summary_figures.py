"""The three figures of the report: loss, bits per byte and accuracy against training tokens."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from stages.lib.report import figures
from stages.lib.report.curves import Curves
from stages.lib.report.figures import Line, Point
from stages.lib.report.references import beside, trivial
from stages.lib.report.scores import ScoreRow
from stages.lib.scoring.tasks import local_tasks

ACCURACIES = ("acc", "acc_mutual_info")


def draw(
    directory: Path, rows: Sequence[ScoreRow], references: Sequence[ScoreRow], curves: Mapping[str, Curves]
) -> list[Path]:
    """Draw the figures; returns their paths. `rows`: scores, with the tokens of the models before added."""
    paths = [directory / name for name in ("loss.svg", "bits_per_byte.svg", "accuracy.svg")]
    bits = [row for row in rows if row["metric"] == "bits_per_byte" and local_tasks.find(row["task"]) is not None]
    accuracy = [row for metric in ACCURACIES for row in rows if row["metric"] == metric]
    tasks = [local_tasks.find(row["task"]) for row in rows]
    chances = sorted({task.chance for task in tasks if task is not None and task.chance is not None})
    levels = {f"chance ({chance:g})": chance for chance in chances}
    figures.draw(paths[0], "Loss", "nats per token", _loss_lines(curves))
    baselines = _levels(bits, references, with_trivial=False)  # counted bytes would need twice the height
    figures.draw(paths[1], "Validation text", "bits per byte", _score_lines(bits), baselines)
    figures.draw(paths[2], "Accuracy", "accuracy", _score_lines(accuracy), levels | _levels(accuracy, references))
    return paths


def _levels(rows: Sequence[ScoreRow], references: Sequence[ScoreRow], with_trivial: bool = True) -> dict[str, float]:
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


def _loss_lines(curves: Mapping[str, Curves]) -> list[Line]:
    lines = []
    for run_name, curve in curves.items():
        if curve.train:
            label = f"{run_name}, training"
            lines.append(Line(label=label, group=run_name, part="training", points=curve.train, marked=False))
        for source, points in sorted(curve.validation.items()):
            lines.append(Line(label=f"{run_name}, validation {source}", group=run_name, part=source, points=points))
    return lines


def _score_lines(rows: Iterable[ScoreRow]) -> list[Line]:
    points: defaultdict[tuple[str, str, str], list[Point]] = defaultdict(list)
    for row in rows:
        if row["value"] is not None:
            points[row["metric"], row["run"], row["task"]].append((row["tokens"], row["value"], row["stderr"]))
    return [
        Line(label=f"{run_name}, {task}", group=run_name, part=task, points=found)
        for (_, run_name, task), found in points.items()
    ]
