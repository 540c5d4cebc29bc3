"""The scores of all milestones of the compared runs against training tokens."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from stages.lib.report import comparison, figures
from stages.lib.report.curves import tokens_before
from stages.lib.report.figures import Line, Point
from stages.lib.report.results import Results
from stages.lib.scoring.tasks import local_tasks

WIDTH, HEIGHT = 5.2, 3.0  # inches of a figure, two of which stand side by side


@dataclass(frozen=True, kw_only=True)
class CurvePoint:
    """A score of a milestone. `tokens`: with those of the model that the run was tuned from."""

    suite: str
    task: str
    metric: str
    run: str
    step: int
    tokens: int
    value: float | None
    stderr: float | None
    n: int | None


def points(results: Results) -> list[CurvePoint]:
    """Return the main metric of each task of each milestone, by suite, task, run and step."""
    before = tokens_before(results)
    found = []
    for (run, step, suite), made in results.evaluations.items():
        for task, metrics in made.identity["results"].items():
            metric = comparison.main_metric(metrics)
            score = metrics[metric]
            found.append(
                CurvePoint(
                    suite=suite,
                    task=task,
                    metric=metric,
                    run=run,
                    step=step,
                    tokens=made.identity["tokens"] + before[run],
                    value=score["value"],
                    stderr=score.get("stderr"),
                    n=score.get("n"),
                )
            )
    return sorted(found, key=lambda point: (point.suite, point.task, point.metric, point.run, point.step))


def draw(found: list[CurvePoint]) -> dict[str, str]:
    """Return {SUITE/TASK: SVG} of the tasks with two milestones of a run or more."""
    by_task: defaultdict[tuple[str, str, str], defaultdict[str, list[Point]]] = defaultdict(lambda: defaultdict(list))
    for point in found:
        if point.value is not None:
            by_task[point.suite, point.task, point.metric][point.run].append((point.tokens, point.value, point.stderr))
    drawn = {}
    for (suite, task, metric), runs in by_task.items():
        if max(map(len, runs.values())) > 1:
            lines = [Line(label=run, group=run, part=run, points=of_run) for run, of_run in runs.items()]
            local = local_tasks.find(task)
            chance = local.chance if local is not None else None
            levels = {} if chance is None else {f"chance ({chance:g})": chance}
            drawn[f"{suite}/{task}"] = figures.svg(f"{suite}/{task}", metric, lines, levels, (WIDTH, HEIGHT)).decode()
    return drawn
