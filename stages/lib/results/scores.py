"""Scores as rows, one per run, step, task and metric; those of baselines and of trivial readers, which use no model."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stages.lib import files
from stages.lib.contamination import rules
from stages.lib.manifest import ContaminationManifest, EvaluationManifest
from stages.lib.results.manifests import Results
from stages.lib.scoring import sample_logs
from stages.lib.scoring.aggregations import BITS_OF_ANSWER, CENTERED, document_scores
from stages.lib.scoring.sample_logs import SampleLog
from stages.lib.scoring.tasks import local_tasks

MAIN_METRICS = (*dict.fromkeys(task.metric for task in local_tasks.TASKS), CENTERED, "acc")

LOWER_IS_BETTER = {
    *(task.metric for task in local_tasks.TASKS if task.lower_is_better),
    *("byte_perplexity", "word_perplexity", "perplexity", "brier_score", "ter", BITS_OF_ANSWER),
}

TOLERANCE = 1e-6
"""Relative difference of sums in another order."""

INDEPENDENT = 3.0
"""Independent standard errors from which on a difference is not attributed to chance."""

COLUMNS = (
    *("run", "step", "tokens", "task", "metric", "value", "stderr", "n"),
    *("contaminated", "clean", "clean_stderr", "clean_n"),
)
"""`contaminated`: share of the task's items that stand in the training text; `clean`: the score over the others."""

ScoreRow = dict[str, Any]
"""A row of the table: a mapping with `suite` and keys of COLUMNS, all of them up to `stderr`."""


def lower_is_better(metric: str) -> bool:
    """Return True for a metric, METRIC or METRIC/FILTER, whose lower values are better."""
    return metric.partition("/")[0] in LOWER_IS_BETTER


def badness(row: ScoreRow) -> float:
    """Return a number that orders scores of one metric, the best first."""
    return row["value"] if lower_is_better(row["metric"]) else -row["value"]


def main_metric(metrics: Collection[str]) -> str:
    """Return the metric that is shown of a task: the first of MAIN_METRICS, or the task's first; `bpb` if alone."""
    of_harness = [name for name in metrics if name != BITS_OF_ANSWER]
    return next((name for name in (*MAIN_METRICS, *of_harness) if name in metrics), BITS_OF_ANSWER)


def shown_metrics(metrics: Collection[str]) -> list[str]:
    """Return the metrics of a task that tables show: the main one, and `bpb`, which tells small models apart where
    their accuracies are at chance."""
    return [name for name in dict.fromkeys([main_metric(metrics), BITS_OF_ANSWER]) if name in metrics]


def label_of(task: str, metric: str) -> str:
    """Return a task as tables name it: with the metric where it is `bpb` or one that a local task adds."""
    local = local_tasks.find(task)
    further = local.further_metrics if local else ()
    return f"{task}, {metric}" if metric in (BITS_OF_ANSWER, *further) else task


def columns_of(rows: Iterable[ScoreRow]) -> list[tuple[str, str]]:
    """Return (task, metric) of all that tables show: local tasks in the order of tables, then the others by name."""
    metrics: dict[str, list[str]] = {}
    for row in rows:
        metrics.setdefault(row["task"], []).append(row["metric"])

    def order(column: tuple[str, str]) -> tuple[int, str]:
        local = local_tasks.find(column[0])
        return local_tasks.TASKS.index(local) if local else len(local_tasks.TASKS), column[0]

    shown = [(task, metric) for task, of_task in metrics.items() for metric in shown_metrics(sorted(of_task))]
    return sorted(shown, key=order)


def rows_of(evaluation: EvaluationManifest, suite: str) -> list[ScoreRow]:
    """Return the scores of an evaluation, with the number of examples; what is unknown is None."""
    unknown = {"value": None, "stderr": None, "n": None}
    return [
        {"suite": suite, "task": task, "metric": metric, **unknown, **score}
        for task, metrics in evaluation.identity["results"].items()
        for metric, score in metrics.items()
    ]


def score_rows(results: Results) -> list[ScoreRow]:
    """Return all scores, sorted. A task that is in several suites of a milestone is named SUITE/TASK."""
    rows: list[ScoreRow] = []
    for (run_name, step, suite), evaluation in results.evaluations.items():
        clean = clean_scores(evaluation, results.contamination_of(evaluation))
        at = {"run": run_name, "step": step, "tokens": evaluation.identity["tokens"]}
        rows += [at | row | clean.get((row["task"], row["metric"]), {}) for row in rows_of(evaluation, suite)]
    suites: dict[tuple[str, int, str], set[str]] = {}
    for row in rows:
        suites.setdefault((row["run"], row["step"], row["task"]), set()).add(row["suite"])
    for row in rows:
        if len(suites[row["run"], row["step"], row["task"]]) > 1:
            row["task"] = f"{row['suite']}/{row['task']}"
    return sorted(rows, key=lambda row: (row["run"], row["step"], row["task"], row["metric"]))


def write_scores(path: Path, rows: Iterable[ScoreRow], more: Sequence[str] = ()) -> None:
    """Write the table as CSV; an unknown value is empty. `more`: keys of the rows that are further columns."""
    with files.atomic(path, "w") as file:
        files.write_csv(file, (*COLUMNS, *more), rows)


def clean_scores(
    evaluation: EvaluationManifest, contamination: ContaminationManifest | None
) -> dict[tuple[str, str], dict[str, Any]]:
    """Return {(task, metric): {"contaminated", "clean", "clean_stderr", "clean_n"}} for tasks with items.

    `contamination`: that of the evaluation's corpus by its suite. The last three are missing without a clean score.
    """
    if contamination is None:
        return {}
    dirty, scores = rules.doc_ids(contamination), {}
    for task, metrics in evaluation.identity["results"].items():
        rate = rules.rate_of(contamination, task)
        if rate is None:
            continue
        log = sample_logs.read_logs(evaluation, evaluation.path.stem, task)
        for metric, score in metrics.items():
            scores[task, metric] = {"contaminated": rate, **_clean(metric, score["value"], log, dirty[task])}
    return scores


def _clean(metric: str, value: float | None, log: SampleLog | None, dirty: Collection[int]) -> Mapping[str, Any]:
    values = {number: value for (_, number), (_, value) in log.values(metric).items()} if log else {}
    again = document_scores(metric, list(values.values()))
    if value is None or again is None or not math.isclose(again.score(), value, rel_tol=TOLERANCE, abs_tol=1e-12):
        return {}
    clean = document_scores(metric, [value for number, value in values.items() if number not in dirty])
    if clean is None:
        return {"clean": None, "clean_stderr": None, "clean_n": 0}
    return {"clean": clean.score(), "clean_stderr": clean.standard_error(), "clean_n": len(clean.columns)}


BASELINE, TRIVIAL, EXCHANGED = "baseline", "trivial", "exchanged"
"""The first word of a reference's name, which stands in the column `run` of the table."""


def reference_rows(results: Results) -> list[ScoreRow]:
    """Return the scores of baselines (`baseline NAME`), trivial readers (`trivial READER`), and runs with exchanged
    contexts (`exchanged RUN`, of the last milestone that has them), without step and tokens.

    A reference has one row per corpus and metric: its `corpus` is that of the scores beside it.
    """
    rows: dict[tuple[str, ...], ScoreRow] = {}

    def add(name: str, corpus: str, row: ScoreRow) -> None:
        key = name, row["suite"], row["task"], row["metric"], corpus
        rows[key] = {"run": name, "step": None, "tokens": None, "corpus": corpus} | row

    for (name, _, suite), scores in results.baselines.items():
        for row in rows_of(scores, suite):
            add(f"{BASELINE} {name}", scores.identity.get("corpus", ""), row)
    for (run_name, _, suite), scores in results.evaluations.items():  # sorted by step: the last one stays
        for task, metrics in scores.identity.get("exchanged_contexts", {}).items():
            for metric, score in metrics.items():
                at = {"suite": suite, "task": task, "metric": metric}
                add(f"{EXCHANGED} {run_name}", scores.identity.get("corpus", ""), at | score)
        for task, readers in scores.identity.get("trivial", {}).items():
            local_task = local_tasks.find(task)
            at = {"suite": suite, "task": task, "metric": local_task.metric if local_task else ""}
            for reader, score in readers.items():
                add(f"{TRIVIAL} {reader}", scores.identity.get("corpus", ""), at | score)
    suites: dict[str, set[str]] = {}
    for row in rows.values():
        suites.setdefault(row["task"], set()).add(row["suite"])
    several = {task for task, names in suites.items() if len(names) > 1}
    return [
        row | {"task": f"{row['suite']}/{row['task']}"} if row["task"] in several else row
        for _, row in sorted(rows.items())
    ]


def beside(row: ScoreRow, references: Iterable[ScoreRow]) -> list[ScoreRow]:
    """Return the references of a score's task and metric, best first."""
    same = [other for other in references if all(other[key] == row[key] for key in ("task", "metric"))]
    return sorted((other for other in same if other["value"] is not None), key=badness)


def trivial(references: Sequence[ScoreRow]) -> list[ScoreRow]:
    """Return the rows of trivial readers."""
    return [row for row in references if row["run"].startswith(f"{TRIVIAL} ")]


def readers_sentence(row: ScoreRow, references: Sequence[ScoreRow]) -> list[str]:
    """Return lines on what trivial readers reach beside a model's score, and the model itself with exchanged contexts;
    none without them."""
    lines = []
    name = f"{EXCHANGED} {row['run']}"
    if (control := next((other for other in beside(row, references) if other["run"] == name), None)) is not None:
        errors = math.hypot(row["stderr"] or 0.0, control["stderr"] or 0.0)
        worse = badness(control) - badness(row)
        is_read = worse > INDEPENDENT * errors
        verdict = f"worse by {worse:.3f}" if is_read else "not clearly worse, so the questions may not be read"
        lines = [f"    with the contexts of other questions {control['value']:.3f}: {verdict}"]
    readers = beside(row, trivial(references))
    if not readers:
        return lines
    names = {f"{reader['run'].partition(' ')[2]} {reader['value']:.3f}": reader for reader in readers}
    if at_least := [name for name, reader in names.items() if badness(reader) <= badness(row)]:
        return [*lines, f"    trivial baselines that do at least as well: {', '.join(at_least)}"]
    return [*lines, f"    the best trivial baseline does worse: {next(iter(names))}"]
