"""Scores averaged over the last milestones of a run.

Neighbouring checkpoints differ by noise of the training, which a mean over them takes out (Signal and Noise, arXiv
2508.13144). The error of a mean is that over documents: each document has the mean of its values over the milestones,
which are not independent. It does not contain the noise of a run; `seeds` tells that.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from stages.lib.errors import UserError
from stages.lib.manifest import EvaluationManifest
from stages.lib.manifest_types import EvaluationIdentity, Score, Scores
from stages.lib.results.manifests import ModelKey, Results
from stages.lib.results.scores import TOLERANCE, ScoreRow, score_rows
from stages.lib.scoring import sample_logs
from stages.lib.scoring.sample_logs import AveragedEvaluation, SampleLog

AVERAGED = "averaged"
"""The first word of a row's name in the table of scores: `averaged RUN` has the means of a run."""


def of_last_milestones(results: Results, counts: Mapping[str, int]) -> tuple[Results, list[str]]:
    """Return results whose evaluations of each run's last milestone are means, and sentences on runs without.

    `counts`: {run: number of milestones}.
    """
    last = {run_name: step for run_name, step, _ in results.evaluations}  # sorted by step
    problems = []
    for run_name, count in counts.items():
        try:
            results = averaged(results, {(run_name, last[run_name]): count} if run_name in last else {})
        except UserError as error:
            problems.append(str(error))
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


def averaged(results: Results, counts: Mapping[ModelKey, int]) -> Results:
    """Return results whose evaluations of some milestones are means over the last ones up to there.

    `counts`: {(run, step): number of milestones}. Raises UserError if a run has fewer scored ones.
    """
    changed = copy.copy(results)
    changed.evaluations = dict(results.evaluations)
    for (run_name, step), count in counts.items():
        of_suites: dict[str, list[EvaluationManifest]] = {}
        for (name, at, suite), evaluation in results.evaluations.items():  # sorted by step
            if name == run_name and at <= step:
                of_suites.setdefault(suite, []).append(evaluation)
        for suite, scored in of_suites.items():
            if (run_name, step, suite) not in results.evaluations:
                continue
            if len(scored) < count:
                steps = ", ".join(str(one.identity["step"]) for one in scored)
                raise UserError(
                    f"run {run_name} cannot be averaged over {count} milestones up to step {step}: the suite {suite} "
                    f"scored the steps {steps}"
                )
            changed.evaluations[run_name, step, suite] = _mean_of(scored[-count:], suite)
    return changed


def _mean_of(evaluations: Sequence[EvaluationManifest], suite: str) -> AveragedEvaluation:
    """Return the last of several evaluations by one suite with the means of their scores, as far as all have them.

    Raises UserError if they were made with different recipes.
    """
    last = evaluations[-1]
    for other in evaluations:
        if other.identity["recipe"] != last.identity["recipe"]:
            raise UserError(
                f"{other.path} and {last.path} cannot be averaged: they were made with different recipes of the suite; "
                "run the workflow again"
            )
    mean = AveragedEvaluation(last.path, last.stage, last.identity, last.record, tuple(evaluations))
    results: Scores = {}
    for task, metrics in last.identity["results"].items():
        log = sample_logs.read_logs(mean, suite, task, is_required=False)
        for metric in metrics:
            of_all = [one.identity["results"].get(task, {}).get(metric) for one in evaluations]
            scores = [score for score in of_all if score is not None]
            if len(scores) == len(evaluations):
                results.setdefault(task, {})[metric] = _score(scores, metric, log)
    identity: EvaluationIdentity = {**last.identity, "results": results}
    return dataclasses.replace(mean, identity=identity)


def _score(scores: Sequence[Score], metric: str, log: SampleLog | None) -> Score:
    """Return the mean of a score, with its standard error over documents. `log`: the mean of the logs.

    Where the score is no mean over the documents of the log, the error is the mean of the errors, which is too large
    rather than too small: the milestones have the documents in common.
    """
    values = [value for score in scores if (value := score["value"]) is not None]
    errors = [error for score in scores if (error := score["stderr"]) is not None]
    if len(values) < len(scores):
        return {**scores[-1], "value": None, "stderr": None}
    value, error = fmean(values), fmean(errors) if len(errors) == len(scores) else None
    own = None if log is None else log.scores(metric)
    if error is not None and own is not None and math.isclose(own.score(), value, rel_tol=TOLERANCE, abs_tol=1e-9):
        error = own.standard_error()
    return {**scores[-1], "value": value, "stderr": error}
