"""The text that is shown at the end: what was trained, its scores, and where to look."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from stages.lib.manifest import AVERAGE, ModelManifest, trained_by
from stages.lib.pages.inputs import ReportInputs
from stages.lib.pages.scores import contaminated, lines_of, tuning
from stages.lib.render import numbers, table
from stages.lib.render.table import Cell, Table
from stages.lib.results.differences import TaskDifference
from stages.lib.results.manifests import ModelKey
from stages.lib.results.scores import BASELINE, ScoreRow, beside, columns_of, readers_sentence
from stages.lib.scoring.tasks import local_tasks
from stages.lib.scoring.tasks.task import LocalTask, TextTask

CONTAMINATED = 5  # tasks with the highest rates that are listed
OTHERS = 5  # other tasks that are named
DETAILED = 8  # more runs stand only in the tables of runs


def text(inputs: ReportInputs, places: Sequence[Path], predictions: Sequence[str]) -> str:
    """Return the summary of all runs. `places`: paths to look at, of which those that exist are named."""
    results = inputs.results
    lines = [line for of_stage in inputs.tables for line in lines_of(of_stage, "scores.csv")]
    lines += [inputs.on_averages(), ""] if lines and inputs.averages else []
    tuned = tuning(results, inputs.last_rows, inputs.differences)
    names = results.runs()
    for name in names if len(names) <= DETAILED or not inputs.tables else ():
        of_run = [row for row in inputs.rows if row["run"] == name and row["value"] is not None]
        # tasks in a table before and after tuning, of this run or of one tuned from it
        shown = {row["task"] for other, compared in tuned.items() for _, rows in compared for row in rows
                 if name in (other, (results.tuned_from(other) or ("",))[0])}  # fmt: skip
        evaluations = [one for (run_name, *_), one in results.evaluations.items() if run_name == name]
        corpora = {evaluation.identity.get("corpus", "") for evaluation in evaluations}
        references = [row for row in inputs.references if row["corpus"] in corpora]
        means = [row for row in inputs.last_rows if row["run"] == name]
        lines += [*_run(inputs, name), *_scores(of_run, means, inputs.averages.get(name), references, shown)]
        lines += [*_before_and_after(inputs, name, tuned.get(name, ())), *_contaminated(inputs.last_rows, name), ""]
    if not lines:
        lines += ["There are no results yet.", ""]
    if predictions:
        lines += [*predictions, ""]
    for title, found in {"Missing results (see the logs in results/logs):": inputs.missing,
                         "Warnings:": inputs.warnings}.items():  # fmt: skip
        if found:
            lines += [title, *(f"  {line}" for line in found), ""]
    return "\n".join([*lines, f"See {', '.join(str(path) for path in places if path.exists())}"]) + "\n"


def _run(inputs: ReportInputs, name: str) -> list[str]:
    """Return what was trained, and where it is."""
    model = inputs.results.last_models().get(name)
    parts, lines = [], []
    if model:
        parts.append(f"{model.identity['tokens']:,} training tokens in {model.identity['step']:,} steps")
    if model and model.stage == AVERAGE:
        steps = [step.lstrip("0") for step in model.identity.get("models", {})]
        parts.append(f"the mean of the weights at the steps {', '.join(steps)}")
    if model and trained_by(model) == "finetune":
        parts.append(_tuned(model, inputs.results.tuned_from(name)))
        lines = [_validation(source, scores) for source, scores in model.record.get("validation", {}).items()]
    if export := inputs.results.last_exports().get(name):
        record = export.record
        if parameters := record.get("parameters"):
            active = record.get("active_parameters") or 0
            of_them = f" ({numbers.short(active)} active)" if active else ""
            parts.append(f"{numbers.short(parameters)} parameters{of_them}")
        if vocabulary := record.get("vocab_size"):
            parts.append(f"a vocabulary of {vocabulary:,} tokens")
        lines = [f"  Hugging Face model: {export.directory}", *lines]
    return [f"Run {name}: {', '.join(parts) or 'scores only'}", *lines]


def _tuned(model: ModelManifest, origin: ModelKey | None) -> str:
    """Return in words what a model was tuned from, and how."""
    place = model.record.get("initial")
    name = "{} at step {}".format(*origin) if origin else place or "another model"
    recipe = model.identity["recipe"]
    how = [f"LoRA of rank {recipe['lora']['rank']}"] if recipe.get("lora") else []
    how += ["DPO"] if "dpo" in recipe else []
    return f"fine-tuned from {name}" + (f" by {' and '.join(how)}" if how else "")


def _validation(source: str, scores: Mapping[str, float]) -> str:
    if "rewards/margins" not in scores:
        return f"  validation {source}: loss {scores['loss']:.3f}"
    return (
        f"  validation {source}: the chosen completion has the higher reward in {scores['rewards/accuracies']:.1%} of "
        f"the pairs; margin {scores['rewards/margins']:.3f}"
    )


def _scores(
    rows: Sequence[ScoreRow],
    last_rows: Sequence[ScoreRow],
    averaged: int | None,
    references: Sequence[ScoreRow],
    compared: set[str],
) -> list[str]:
    """Return a table of a run's tasks of validation text, a sentence on each, and the names of its other tasks.

    `last_rows`: the same rows; if `averaged`, with means over so many milestones in place of the last one's scores, of
    which those of scores that are not finite have no value.
    """
    shown: dict[str, list[ScoreRow]] = {}
    tasks: dict[str, LocalTask] = {}
    for task in (task for task in local_tasks.TASKS if isinstance(task, TextTask)):
        for row in rows:
            if local_tasks.find(row["task"]) is task and row["metric"] == task.metric:
                shown.setdefault(row["task"], []).append(row)
                tasks[row["task"]] = task
    lines: list[str] = []
    if shown:
        cells = {(row["step"], row["task"]): _score(row) for of_task in shown.values() for row in of_task}
        tokens = {row["step"]: row["tokens"] for of_task in shown.values() for row in of_task}
        body: list[list[str | Cell]] = [
            [f"{step}", f"{tokens[step]:,}", *(cells.get((step, task), numbers.UNKNOWN) for task in shown)]
            for step in sorted(tokens)
        ]
        last = {(row["task"], row["metric"]): row for row in last_rows}  # sorted by step
        of_last = {name: last[name, tasks[name].metric] for name in shown}
        if averaged:
            body.append([f"mean of {averaged}", "", *map(_score, of_last.values())])
        baselines: dict[str, dict[str, Cell]] = {}
        for task_name, of_task in shown.items():
            for other in beside(of_task[-1], references):
                if other["run"].startswith(f"{BASELINE} "):
                    baselines.setdefault(other["run"], {})[task_name] = _score(other)
        for name, of_name in sorted(baselines.items()):
            body.append([name, "", *(of_name.get(task, numbers.UNKNOWN) for task in shown)])
        titles = ["step", "tokens", *shown]
        lines += Table(titles=titles, rows=body, numeric=range(len(titles))).text()
    for name, of_task in shown.items():
        is_mean = averaged and tasks[name].chance is not None and of_last[name]["value"] is not None
        title, of_title = (f"mean of {averaged}, {name}", [of_last[name]]) if is_mean else (name, of_task)
        lines += _sentence(title, tasks[name], of_title, references)
    if others := sorted({row["task"] for row in rows} - set(shown) - compared):
        lines.append(f"  other tasks ({len(others)}): {', '.join(others[:OTHERS])}" + ", ..." * (len(others) > OTHERS))
    return lines


def _score(row: ScoreRow) -> Cell:
    return table.score(row["value"], row["stderr"])


def _sentence(name: str, task: LocalTask, rows: Sequence[ScoreRow], references: Sequence[ScoreRow]) -> list[str]:
    """Return a line on a task: accuracy against chance, or the change from the first step to the last."""
    first, last = rows[0]["value"], rows[-1]
    if task.chance is not None:
        against = f"chance is {task.chance:g}"
        if last["stderr"]:
            errors = (last["value"] - task.chance) / last["stderr"]
            side = "above" if errors > 0 else "below"
            against = f"{abs(errors):.1f} standard errors {side} chance ({task.chance:g})"
        accuracy = numbers.score(last["value"], last["stderr"])
        line = f"  {name} ({task.description}): accuracy {accuracy}, {against}"
        return [line, *readers_sentence(last, references)]
    if len(rows) < 2:
        return []
    moved = "fell" if last["value"] < first else "rose" if last["value"] > first else "stayed:"
    better = "lower" if task.lower_is_better else "higher"
    change = f"from {numbers.score(first)} to {numbers.score(last['value'])}"
    return [f"  {name} {moved} {change} ({task.description}: {better} is better)"]


def _before_and_after(
    inputs: ReportInputs, name: str, compared: Sequence[tuple[TaskDifference, Sequence[ScoreRow]]]
) -> list[str]:
    """Return the scores of a tuned run beside those of the model that it was tuned from, and the verdicts."""
    origin = inputs.results.tuned_from(name)
    if not compared or origin is None:
        return []
    places = list(dict.fromkeys((row["run"], row["step"]) for _, rows in compared for row in rows))
    body: list[list[str | Cell]] = []
    for difference, rows in compared:
        cells = {(row["run"], row["step"]): _score(row) for row in rows}
        body.append([difference.label, *(cells.get(place, numbers.UNKNOWN) for place in places)])
    titles = ["", *(f"{run_name} {step}" for run_name, step in places)]
    lines = Table(titles=titles, rows=body, numeric=range(1, len(titles))).text()
    lines += [f"  {difference.label}: {difference.sentence(origin[0], name)}" for difference, _ in compared]
    of_origin = {suite: one for (*key, suite), one in inputs.results.evaluations.items() if tuple(key) == origin}
    plain = [suite for suite, one in of_origin.items() if one.identity.get("chat_template") is False]
    if plain:
        lines.append(f"  {origin[0]} has no chat template: the questions of {', '.join(plain)} are plain text for it")
    return lines


def _contaminated(rows: Sequence[ScoreRow], name: str) -> list[str]:
    """Return a line per task of a run's last scores with contaminated items, the highest rates first."""
    of_run = [row for row in contaminated(rows) if row["run"] == name]
    columns = columns_of(of_run)
    main = [row for row in of_run if (row["task"], row["metric"]) in columns]
    dirty = [row for row in main if row["contaminated"] > 0]
    if not main:
        return []
    lines = [f"  contamination: {len(dirty)} of {len(main)} tasks have items that stand in the training text"]
    for row in dirty[:CONTAMINATED]:
        line = f"    {row['task']}: {row['contaminated']:.1%} of the items"
        if row["value"] is not None and row.get("clean") is not None:
            clean = numbers.score(row["clean"], row["clean_stderr"])
            scores = f"{numbers.score(row['value'], row['stderr'])}, without them {clean}"
            line += f"; {row['metric']} {scores} ({row['clean_n']} items)"
        lines.append(line)
    return lines + ["    ..."] * (len(dirty) > CONTAMINATED)
