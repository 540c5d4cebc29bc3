"""Scores averaged over the last milestones of a run.

Neighbouring checkpoints differ by noise of the training, which a mean over them takes out (Signal and Noise, arXiv
2508.13144). The error of a mean is that over documents: each document has the mean of its values over the milestones,
which are not independent. It does not contain the noise of a run; `seeds` tells that.
"""

from __future__ import annotations

import copy
from collections.abc import Container, Mapping, Sequence
from statistics import fmean
from typing import Any

from stages.lib.errors import UserError
from stages.lib.manifest import EvaluationManifest
from stages.lib.manifest_types import EvaluationIdentity, Score, Scores
from stages.lib.results.manifests import ModelKey, Results
from stages.lib.results.scores import ScoreRow, score_rows
from stages.lib.scoring import sample_logs
from stages.lib.scoring.sample_logs import AveragedEvaluation, SampleLog

AVERAGED = "averaged"
"""The first word of a row's name in the table of scores: `averaged RUN` has the means of a run."""


def of_last_milestones(results: Results, runs: Mapping[str, Mapping[str, Any]]) -> tuple[Results, list[str]]:
    """Return results whose evaluations of each run's last milestone are means, and sentences on those that are not.

    `runs`: what the config says of each run, with `average` where its scores are averaged, and its `suites`: the last
    milestone may also have the scores of suites of runs that are tuned from it.
    """
    last = {run_name: step for run_name, step, _ in results.evaluations}  # sorted by step
    problems = []
    for run_name, run in runs.items():
        if run.get("average") and run_name in last:
            results, found = averaged(results, {(run_name, last[run_name]): run["average"]}, run["suites"])
            problems += found
    return results, problems


def counts_of(results: Results) -> dict[str, int]:
    """Return {run: number of milestones} of the runs whose scores are averaged."""
    return {
        run_name: len(evaluation.milestones)
        for (run_name, *_), evaluation in results.evaluations.items()
        if isinstance(evaluation, AveragedEvaluation)
    }


def rows_of_means(results: Results) -> list[ScoreRow]:
    """Return the rows of averaged scores, as `averaged RUN` without a step."""
    means = copy.copy(results)
    means.evaluations = {
        key: evaluation for key, evaluation in results.evaluations.items() if isinstance(evaluation, AveragedEvaluation)
    }
    return [row | {"run": f"{AVERAGED} {row['run']}", "step": None} for row in score_rows(means)]


def averaged(
    results: Results, counts: Mapping[ModelKey, int], suites: Container[str] | None = None
) -> tuple[Results, list[str]]:
    """Return results whose evaluations of some milestones are means over the last ones up to there, and a sentence on
    each suite that has no mean.

    `counts`: {(run, step): number of milestones}. `suites`: the only ones that are averaged (default: all).
    """
    changed, problems = copy.copy(results), []
    changed.evaluations = dict(results.evaluations)
    for (run_name, step), count in counts.items():
        of_suites: dict[str, list[EvaluationManifest]] = {}
        for (name, at, suite), evaluation in results.evaluations.items():  # sorted by step
            if name == run_name and at <= step and (suites is None or suite in suites):
                of_suites.setdefault(suite, []).append(evaluation)
        for suite, scored in of_suites.items():
            try:
                changed.evaluations[run_name, step, suite] = _mean_of(scored[-count:], suite, count)
            except UserError as error:
                problems.append(f"run {run_name} is not averaged at step {step}: {error}")
    return changed, problems


def _mean_of(evaluations: Sequence[EvaluationManifest], suite: str, count: int) -> AveragedEvaluation:
    """Return the last of several evaluations by one suite with the means of their scores, as far as all have them.

    Raises UserError if they are less than `count`, were made with different recipes, or a log is damaged.
    """
    last = evaluations[-1]
    if len(evaluations) < count:
        steps = ", ".join(str(one.identity["step"]) for one in evaluations)
        raise UserError(f"the suite {suite} must have scores of {count} milestones up to there, and has {steps}")
    for other in evaluations:
        if other.identity["recipe"] != last.identity["recipe"]:
            raise UserError(
                f"{other.path} and {last.path} were made with different recipes of the suite; run the workflow again"
            )
    results: Scores = {}
    for task, metrics in last.identity["results"].items():
        logs = [sample_logs.read_logs(one, suite, task, is_required=False) for one in evaluations]
        known = [log for log in logs if log is not None]
        for metric in metrics:
            of_all = [one.identity["results"].get(task, {}).get(metric) for one in evaluations]
            scores = [score for score in of_all if score is not None]
            if len(scores) == len(evaluations):
                results.setdefault(task, {})[metric] = _score(scores, metric, known if len(known) == count else [])
    identity: EvaluationIdentity = {**last.identity, "results": results}
    return AveragedEvaluation(last.path, last.stage, identity, last.record, tuple(evaluations))


def _score(scores: Sequence[Score], metric: str, logs: Sequence[SampleLog]) -> Score:
    """Return the mean of a score over milestones, with its standard error over documents. `logs`: of each milestone.

    The logs tell by how much the error of a mean is below the mean of the errors, since the milestones answer the same
    questions. Where they are missing, or the score is not a function of a sum over documents, it counts as equal.
    """
    values = [value for score in scores if (value := score["value"]) is not None]
    errors = [error for score in scores if (error := score["stderr"]) is not None]
    if len(values) < len(scores):
        return {**scores[-1], "value": None, "stderr": None}
    error = fmean(errors) if len(errors) == len(scores) else None
    by_document = [log.scores(metric) for log in (*logs, sample_logs.mean_of(logs))] if logs else []
    known = [found for one in by_document if one is not None and (found := one.standard_error())]
    if error is not None and len(known) == len(scores) + 1:
        *of_milestones, of_mean = known
        error *= min(1.0, of_mean / fmean(of_milestones))
    return {**scores[-1], "value": fmean(values), "stderr": error}
