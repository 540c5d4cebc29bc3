"""Everything that the sections of the report read: manifests, scores, curves, warnings, and the charts of these."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.lib import files, manifest
from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.render import chart
from stages.lib.render.chart import Chart, Line, Point
from stages.lib.results.curves import Curves
from stages.lib.results.differences import Differences
from stages.lib.results.manifests import Results
from stages.lib.results.run_tables import RunTable
from stages.lib.results.scores import BASELINE, ScoreRow, beside, trivial
from stages.lib.scoring.tasks import local_tasks
from stages.lib.sources.source import classifier_path

ACCURACIES = ("acc", "acc_mutual_info")
LOSS = (
    "Losses of runs with different tokenizers are not comparable; scores in bits per byte are. A validation loss is of "
    "windows of the validation split; where a run changed them, each text has a line. The loss of a tuned run is that "
    "of its targets, and its line begins at the tokens of the model that it was tuned from. A run on preferences (DPO) "
    "has no line: its loss is per pair."
)
BITS = (
    "Bits per byte of validation text: the model's log-likelihood of text that it was not trained on, per byte of "
    "UTF-8. It does not depend on the tokenizer; 8 bits encode a byte without any model. Lower is better."
)
ACCURACY = (
    "Accuracy of the multiple-choice tasks with one standard error on each side. Horizontal lines are chance, "
    "baselines, and for each task the best trivial baseline, which uses no model."
)


def summary_charts(
    rows: Sequence[ScoreRow], references: Sequence[ScoreRow], curves: Mapping[str, Curves]
) -> dict[str, Chart]:
    """Return {name: chart} of loss, bits per byte and accuracy.

    `rows`: scores, with the tokens of the models before added.
    """
    bits = [row for row in rows if row["metric"] == "bits_per_byte" and local_tasks.find(row["task"]) is not None]
    accuracy = [row for metric in ACCURACIES for row in rows if row["metric"] == metric]
    tasks = [local_tasks.find(row["task"]) for row in rows]
    chances = sorted({task.chance for task in tasks if task is not None and task.chance is not None})
    colors = source_colors(curves)
    return {
        "loss": training_chart(curves, "Training and validation loss", "nats per token", loss_lines(curves), LOSS),
        "bits_per_byte": Chart(
            title="Validation text",
            y_label="bits per byte",
            lines=score_lines(bits, colors),
            levels=levels_of(bits, references, with_trivial=False),  # counted bytes would need twice the height
            caption=BITS,
        ),
        "accuracy": Chart(
            title="Accuracy",
            y_label="accuracy",
            lines=score_lines(accuracy, colors),
            levels={f"chance ({chance:g})": chance for chance in chances} | levels_of(accuracy, references),
            caption=ACCURACY,
        ),
    }


def training_chart(
    curves: Mapping[str, Curves], title: str, y_label: str, lines: Sequence[Line], caption: str
) -> Chart:
    """Return a chart of lines of runs, with their restarts and rollbacks marked."""
    return Chart(
        title=title,
        y_label=y_label,
        lines=lines,
        caption=caption,
        marks={
            run: {"restart": of_run.health.restarts, "rollback": of_run.health.rollbacks}
            for run, of_run in curves.items()
            if of_run.health.restarts or of_run.health.rollbacks
        },
        steps_per_point=max((of_run.steps_per_point for of_run in curves.values()), default=1),
    )


def levels_of(rows: Sequence[ScoreRow], references: Sequence[ScoreRow], with_trivial: bool = True) -> dict[str, float]:
    """Return {label: score} of each task's baselines, and of its best trivial reader."""
    levels: dict[str, float] = {}
    for row in {row["task"]: row for row in rows}.values():
        others = beside(row, references)
        if len({other["corpus"] for other in others}) > 1:
            continue  # a line could be of either
        readers = trivial(others)
        baselines = [other for other in others if other["run"].startswith(f"{BASELINE} ")]
        shown = baselines + readers[:with_trivial]
        levels |= {f"{other['run']}, {row['task']}": other["value"] for other in shown}
    return levels


def loss_lines(curves: Mapping[str, Curves]) -> list[Line]:
    """Return the lines of training and validation loss of all runs: a color per source, a dash per run."""
    lines, colors = [], source_colors(curves)
    for run, of_run in curves.items():
        if of_run.train:
            lines.append(Line(label=f"{run}, training", group=run, part="training", points=of_run.train, marked=False,
                              color=chart.NEUTRAL))  # fmt: skip
        for source, of_texts in sorted(of_run.validation.items()):
            for number, points in enumerate(of_texts, 1):
                label = f"{run}, validation {source}" + (f", text {number}" if len(of_texts) > 1 else "")
                lines.append(Line(label=label, group=run, part=source, points=points, color=colors[source]))
    return lines


def source_colors(curves: Mapping[str, Curves]) -> dict[str, int]:
    """Return {source: number of its color}, the same in each chart and bar of the report."""
    sources = {source for of_run in curves.values() for source in (*of_run.validation, *of_run.drawn)}
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
        Line(label=f"{run}, {task}", group=run, part=task, points=of_line, color=of_task[task])
        for (_, run, task), of_line in points.items()
    ]


@dataclass(frozen=True, kw_only=True)
class ReportInputs:
    """The data of the report.

    `rows`: scores, with their own tokens; `last_rows`: the same, of the runs in `averages` with means over so many
    milestones in place of the last one's scores; `references`: those to compare with; `charts`: by name. `corpora`:
    {digest: manifest of a corpus}, `lists`: {source: its list}, `classifiers`: {digest: manifest}. `tables`: of all
    runs, `sweeps`: of the runs of each. `plan`: {run: its plan}. `directory`: that of card.html, from which the paths
    of manifests start.
    """

    results: Results
    rows: Sequence[ScoreRow]
    last_rows: Sequence[ScoreRow]
    averages: Mapping[str, int]
    references: Sequence[ScoreRow]
    curves: Mapping[str, Curves]
    charts: Mapping[str, Chart]
    differences: Differences
    missing: Sequence[str]
    warnings: Sequence[str]
    corpora: Mapping[str, manifest.CorpusManifest]
    lists: Mapping[str, manifest.ListManifest]
    classifiers: Mapping[str, manifest.ClassifierManifest]
    tables: Sequence[RunTable]
    sweeps: Mapping[str, Sequence[RunTable]]
    predictions: Sequence[manifest.PredictionManifest]
    plan: Mapping[str, Any]
    directory: Path

    def on_averages(self, runs: Collection[str] | None = None) -> str:
        """Return a sentence on the runs (default: all) whose last scores are means; "" without any."""
        counts: dict[int, list[str]] = {}
        for name, count in self.averages.items():
            if runs is None or name in runs:
                counts.setdefault(count, []).append(name)
        of_counts = [f"last {count} milestones of {', '.join(names)}" for count, names in counts.items()]
        return f"Means over the {' and the '.join(of_counts)}." if of_counts else ""

    def parameters(self, run_name: str) -> int | None:
        """Return the number of parameters of a run's newest export; None without one."""
        export = self.results.last_exports().get(run_name)
        return export.record.get("parameters") if export else None

    def corpus_of(self, model: manifest.ModelManifest) -> manifest.CorpusManifest | None:
        """Return the manifest of a model's corpus; None if it is not among these."""
        return self.corpora.get(model.identity.get("corpus", ""))


def read_corpora(paths: Iterable[Path]) -> dict[str, manifest.CorpusManifest]:
    """Return {digest: corpus} of the paths that exist."""
    return {corpus.digest: corpus for path in paths if path.exists() for corpus in [manifest.read(path, "index")]}


def read_lists(paths: Iterable[Path]) -> dict[str, manifest.ListManifest]:
    """Return {source: its list} of paths. Raises UserError if one does not exist."""
    return {listed.identity["source"]: listed for path in paths for listed in [manifest.read(path, "list")]}


def read_classifiers(lists: Mapping[str, manifest.ListManifest]) -> dict[str, manifest.ClassifierManifest]:
    """Return {digest: manifest} of the classifiers that filter sources, without those that were made again since."""
    found = {}
    for listed in lists.values():
        if "classifier" in listed.identity and (path := classifier_path(listed)).exists():
            made = manifest.read(path, "train_classifier")
            if made.digest == listed.identity["classifier"]:
                found[made.digest] = made
    return found


def read_plan(path: Path | None) -> dict[str, Any]:
    """Return {run: its plan} of the file that `tools.plan` wrote; {} without it, or with a warning for another file."""
    if path is None or not path.exists():
        return {}
    try:
        plan = files.read_json_object(path)
    except UserError:
        plan = {}
    if plan.get("format") != manifest.PLAN_FORMAT:
        logger.warning("%s is not a plan by this version of tools.plan: run the target `plan` again", path)
        return {}
    return plan["runs"]


def shares(numbers: Mapping[str, Any]) -> dict[str, float]:
    """Return the share of each number in their sum; {} of nothing."""
    total = sum(numbers.values())
    return {name: number / total for name, number in numbers.items()} if total else {}
