"""Differences between the scores of two models: the one rule of what is better, used wherever two models are compared.

If both have logs of a task, the difference is paired over its documents, and significant if its p-value is below LEVEL,
corrected by Holm for the tasks of the two models. Otherwise the two standard errors count as independent, as if the
documents were different ones, which is cautious; the difference is significant from INDEPENDENT standard errors on.

The p-value is that of a randomization test: if both models were equally good, their scores of a document could be
swapped. For accuracies that is McNemar's test. A bootstrap's own p-value would be too small where few documents differ:
with 5, all in favor of one model, it is 0.01, while a fair coin falls five times on the same side with a probability of
0.06. The interval is a bootstrap over documents.

Neither knows the noise of a run: that another seed gives another model. Where runs exist that differ from the compared
ones by their seed alone, the means over these runs are compared, and the larger of two errors counts: that over
documents, and that over seeds, by Student's t with the deviation of the runs around the mean of their seeds.
"""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stages.lib.manifest import EvaluationManifest, ModelManifest
from stages.lib.results.manifests import ModelKey, Results
from stages.lib.results.scores import INDEPENDENT, ScoreRow, label_of, lower_is_better, rows_of, shown_metrics
from stages.lib.scoring import aggregations, sample_logs
from stages.lib.scoring.aggregations import DocumentScores
from stages.lib.scoring.sample_logs import SampleLog
from stages.lib.scoring.tasks import local_tasks
from stages.lib.scoring.tasks.task import TextTask

LEVEL = 0.05
"""Corrected p-values below it are significant."""


@dataclass(frozen=True, kw_only=True)
class Seeds:
    """The noise of a run in a score, by runs that differ by their seed alone.

    `counts`: the runs over which the reference's score and the other's are means. `deviation`: the standard deviation
    of a run. `error`: the standard error of the difference that follows.
    """

    counts: tuple[int, int]
    deviation: float
    error: float

    def sentence(self, documents_error: float | None) -> str:
        """Return which error counts. `documents_error`: that over documents."""
        runs = " and ".join(map(str, self.counts)) + " runs"
        if documents_error is not None and documents_error > self.error:
            return f"means of {runs}, whose error over documents, {documents_error:.3g}, is larger than over seeds"
        return f"means of {runs}, standard deviation over seeds {self.deviation:.3g}"


@dataclass(frozen=True, kw_only=True)
class TaskDifference:
    """The difference other - reference of two models in a metric of a task, main or further.

    `value` is None if a score is not finite; `error`: its standard error over documents. `seeds`: the noise of a run,
    if it is known; the scores are means over runs then. `documents`: number of those that a paired difference is over;
    `p`: its p-value, `corrected_p` that by Holm. `errors`: of an unpaired one, its size in standard errors. `low`,
    `high`: the interval of 95%, not corrected.
    """

    suite: str
    task: str
    metric: str
    reference: ScoreRow
    other: ScoreRow
    value: float | None = None
    error: float | None = None
    seeds: Seeds | None = None
    low: float | None = None
    high: float | None = None
    documents: int | None = None
    p: float | None = None
    corrected_p: float | None = None
    errors: float | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        """(suite, task, metric), as `key_of` returns it of the rows of scores that are compared."""
        return self.suite, self.task, self.metric

    @property
    def label(self) -> str:
        """The task, and the metric if it is not the task's main one."""
        return label_of(self.task, self.metric)

    @property
    def lower_is_better(self) -> bool:
        """True for a metric like bits per byte."""
        return lower_is_better(self.metric)

    @property
    def significant(self) -> bool:
        """True if the difference is not attributed to chance."""
        if self.corrected_p is not None:
            return self.corrected_p < LEVEL
        return self.errors is not None and self.errors > INDEPENDENT

    @property
    def verdict(self) -> str:
        """The verdict on the other model: better, worse, not significant or unknown."""
        if self.value is None or (self.documents is None and self.errors is None):
            return "unknown"
        if not self.significant:
            return "not significant"
        return "better" if (self.value < 0) == self.lower_is_better else "worse"

    @property
    def rule(self) -> str:
        """The rule of the verdict, and its figure."""
        if self.seeds is not None and self.value is not None:
            return f"{self.seeds.sentence(self.error)}, p {shown_p(self.corrected_p)}"
        if self.documents is not None:
            return f"paired over {self.documents:,} documents, p {shown_p(self.corrected_p)}"
        if self.errors is not None:
            return f"{self.errors:.1f} independent standard errors"
        return "no standard errors" if self.value is not None else "a score is not finite"

    def sentence(self, reference: str, other: str) -> str:
        """Return the verdict in words, with the names of the two models."""
        if self.value is None:
            return f"{other} cannot be compared with {reference} ({self.rule})"
        if self.significant:
            return f"{other} is {self.verdict} than {reference} by {abs(self.value):.3f} ({self.rule})"
        how = "is not significantly different" if self.verdict == "not significant" else "differs"
        return f"{other} {how} from {reference}: {self.value:+z.3f} ({self.rule})"


def shown_p(p: float | None) -> str:
    """Return a p-value with three digits after the point, or that it is below them."""
    if p is None:
        return "-"
    return "< 0.001" if p < 0.0005 else f"{p:.3f}"


Evaluations = Mapping[str, EvaluationManifest]
"""{suite: scores of a model}"""


@dataclass(frozen=True)
class Replicas:
    """The scores of runs that differ by their seed alone from the reference, and from the other model.

    Each begins with the compared model itself. If the two differ from each other by their seed alone, both have the
    same runs in `groups`, and `reference` and `other` only themselves.
    """

    reference: Sequence[Evaluations]
    other: Sequence[Evaluations]
    groups: Sequence[Sequence[Evaluations]]


def replicas_of(models: Mapping[ModelKey, ModelManifest]) -> dict[ModelKey, list[ModelKey]]:
    """Return of each milestone itself, and one milestone of each other seed whose run is otherwise the same."""
    groups: dict[str, dict[str, ModelKey]] = {}
    of_key: dict[ModelKey, tuple[str, dict[str, ModelKey]]] = {}
    for (run_name, step), model in models.items():
        recipe = dict(model.identity.get("recipe", {}))
        seed = json.dumps(recipe.pop("seed", None))
        same = [model.stage, recipe, step, *(model.identity.get(key) for key in ("corpus", "tuned_on", "initial"))]
        group = groups.setdefault(json.dumps(same, sort_keys=True), {})
        group.setdefault(seed, (run_name, step))
        of_key[run_name, step] = seed, group
    return {
        key: [key, *(other for other_seed, other in group.items() if other_seed != seed)]
        for key, (seed, group) in of_key.items()
    }


class Differences:
    """The differences between milestones of the results. The logs of a pair are read once, when it is asked for."""

    def __init__(self, results: Results) -> None:
        self._evaluations: dict[ModelKey, dict[str, EvaluationManifest]] = {}
        for (run_name, step, suite), evaluation in results.evaluations.items():
            self._evaluations.setdefault((run_name, step), {})[suite] = evaluation
        self._replicas = replicas_of(results.models)
        self._pairs: dict[tuple[ModelKey, ModelKey], list[TaskDifference]] = {}

    def of(self, reference: ModelKey, other: ModelKey) -> list[TaskDifference]:
        """Return the differences of all tasks that two milestones, (run, step), have."""
        if (reference, other) not in self._pairs:
            pair = self._evaluations.get(reference, {}), self._evaluations[other]
            self._pairs[reference, other], _ = compare(*pair, self.replicas(reference, other))
        return self._pairs[reference, other]

    def replicas(self, reference: ModelKey, other: ModelKey) -> Replicas:
        """Return the scores of the runs that differ by their seed alone from one of two milestones."""
        groups = []
        for key in (reference, other):
            others = (one for one in self._replicas.get(key, ()) if one != key and one in self._evaluations)
            groups.append([self._evaluations.get(key, {}), *(self._evaluations[one] for one in others)])
        if other in self._replicas.get(reference, ()):
            return Replicas(groups[0][:1], groups[1][:1], groups[:1])
        return Replicas(groups[0], groups[1], groups)

    def between(self, reference: ScoreRow, other: ScoreRow) -> TaskDifference | None:
        """Return the difference of two rows of `score_rows`; None if they cannot be compared."""
        pair = self.of(*((row["run"], row["step"]) for row in (reference, other)))  # type: ignore[arg-type]
        return next((difference for difference in pair if difference.key == key_of(other)), None)


def key_of(row: ScoreRow) -> tuple[str, str, str]:
    """Return (suite, task, metric) of a row of `score_rows`, which may name a task SUITE/TASK."""
    return row["suite"], row["task"].removeprefix(f"{row['suite']}/"), row["metric"]


def compare(
    reference: Evaluations, other: Evaluations, replicas: Replicas | None = None, thorough: bool = False
) -> tuple[list[TaskDifference], list[str]]:
    """Return the differences of all tasks that both models have, and notes on tasks that are left out or not paired.

    `replicas`: the runs by which the noise of a run is known. `thorough`: paired differences have intervals too, which
    take longer, and a log that was deleted is an error, in place of none. Raises UserError if a log is damaged.
    """
    rows: list[TaskDifference] = []
    notes: list[str] = []
    for suite in sorted(reference.keys() & other.keys()):
        first, second = ({(row["task"], row["metric"]): row for row in rows_of(evaluations[suite], suite)}
                         for evaluations in (reference, other))  # fmt: skip
        for task in dict.fromkeys(task for task, _ in first):
            shared = [metric for at, metric in first if at == task and (task, metric) in second]
            of_task: list[str] = []
            if shared:
                local = local_tasks.find(task)
                metrics = dict.fromkeys([*shown_metrics(shared), *(local.further_metrics if local else ())])
                row, of_task = _compare_task(
                    (reference[suite], other[suite]),
                    [(first[task, metric], second[task, metric]) for metric in metrics if metric in shared],
                    thorough,
                )
                rows += [_with_seeds(one, replicas) for one in row] if replicas else row
            elif any(at == task for at, _ in second):
                of_task = ["left out, since the models have no metric in common"]
            notes += [f"task {task} of suite {suite}: {note}" for note in of_task]
    corrected = iter(holm([row.p for row in rows if row.p is not None]))
    return [row if row.p is None else dataclasses.replace(row, corrected_p=next(corrected)) for row in rows], notes


def _compare_task(
    evaluations: tuple[EvaluationManifest, EvaluationManifest],
    scores: Sequence[tuple[ScoreRow, ScoreRow]],
    thorough: bool,
) -> tuple[list[TaskDifference], list[str]]:
    """Return the differences of a task, none if it is another task for each model, and notes. `scores`: by metric."""
    suite, task = scores[0][0]["suite"], scores[0][0]["task"]
    rows, notes = [], []
    logs: list[SampleLog | None] | None = None
    for first, second in scores:
        row = TaskDifference(suite=suite, task=task, metric=first["metric"], reference=first, other=second)
        if first["value"] is None or second["value"] is None:
            rows.append(row)
            notes.append("a score is not finite")
            continue
        logs = logs or [sample_logs.read_logs(one, suite, task, is_required=thorough) for one in evaluations]
        if logs[0] is None or logs[1] is None:
            if _is_of_other_data(evaluations, task):
                return [], ["left out, since it was made from other validation data, and the logs to join are missing"]
            rows.append(_unpaired(row))
            continue
        joined = Joined(logs[0], logs[1], first["metric"])
        if reason := joined.reason_to_leave_out():
            return [], [f"left out, since {reason}"]
        if reason := joined.reason_not_to_pair([first["value"], second["value"]]):
            rows.append(_unpaired(row))
            notes.append(f"not paired, since {reason}")
        else:
            rows.append(_paired(row, joined, thorough))
            notes += joined.notes()
    return rows, list(dict.fromkeys(notes))


def _is_of_other_data(evaluations: tuple[EvaluationManifest, EvaluationManifest], task: str) -> bool:
    """Return True if a local task was made from the validation data of different corpora or sources."""
    local = local_tasks.find(task)
    if local is None:
        return False
    key = "corpus" if isinstance(local, TextTask) else "prompt_completion"
    first, second = (evaluation.identity.get(key) for evaluation in evaluations)
    return first != second


class Joined:
    """The samples of two logs, by document."""

    def __init__(self, reference: SampleLog, other: SampleLog, metric: str) -> None:
        """Join the samples that have the same number and the same hash."""
        self.metric, self.logs = metric, (reference, other)
        self.values = [log.values(metric) for log in self.logs]
        shared = sorted(self.values[0].keys() & self.values[1].keys())
        self.changed = [at for at in shared if self.values[0][at][0] != self.values[1][at][0]]
        self.documents = [at for at in shared if self.values[0][at][0] == self.values[1][at][0]]

    def reason_to_leave_out(self) -> str | None:
        """Return why the logs are of two tasks with one name; None if they are of one."""
        if self.changed:
            count = len(self.changed) + len(self.documents)
            return f"{len(self.changed)} of {count} documents have another hash: the task or its data changed"
        return None if self.documents else "the logs have no document in common"

    def reason_not_to_pair(self, values: Sequence[float]) -> str | None:
        """Return why the score cannot be computed from samples; None if it can. `values`: those of the manifests."""
        whole = [log.scores(self.metric) for log in self.logs]
        if whole[0] is None or whole[1] is None or whole[0].of_ratio is not whole[1].of_ratio:
            return f"{self.metric} is no function of a sum over documents, or is missing for one"
        for scores, value in zip(whole, values, strict=True):
            if scores is not None and not math.isclose(scores.score(), value, rel_tol=1e-6, abs_tol=1e-9):
                return f"{self.metric} of its samples is {scores.score():.6g}, and its score is {value:.6g}"
        return None

    def scores(self) -> tuple[DocumentScores, DocumentScores]:
        """Return the scores of the joined documents, in the same order."""
        first, second = (log.scores(self.metric, self.documents) for log in self.logs)
        assert first is not None and second is not None  # checked by reason_not_to_pair
        return first, second

    def notes(self) -> list[str]:
        """Return a note if one log has more documents than the other."""
        counts = [len(of_log) for of_log in self.values]
        if counts == [len(self.documents)] * 2:
            return []
        return [f"{len(self.documents)} documents are in both logs, which have {counts[0]} and {counts[1]}"]


SEED = 0
INTERVAL = 0.95
TIES = 1e-9
"""Relative rounding within which a difference of swapped scores counts as equal to the observed one."""


def _paired(row: TaskDifference, joined: Joined, with_interval: bool) -> TaskDifference:
    """Return a row with the difference of the scores of the same documents."""
    reference, other = joined.scores()
    value, count = other.score() - reference.score(), len(reference.columns)
    row = dataclasses.replace(row, value=value, documents=len(joined.documents), p=1.0)
    if count < 2:
        return row
    both = np.concatenate([reference.columns, other.columns], axis=1)
    row = dataclasses.replace(row, p=_randomization_test(both, reference), error=_paired_error(reference, other))
    if not with_interval:
        return row
    resampled = _differences(aggregations.resampled_sums(both, SEED), reference)
    low, high = aggregations.interval(value, resampled, count, INTERVAL)
    return dataclasses.replace(row, low=low, high=high)


def _unpaired(row: TaskDifference) -> TaskDifference:
    """Return a row with the difference of two scores whose errors count as independent."""
    value = row.other["value"] - row.reference["value"]
    first, second = row.reference["stderr"], row.other["stderr"]
    if first is None or second is None:
        return dataclasses.replace(row, value=value)
    error = math.hypot(first, second)
    errors = abs(value) / error if error else math.inf if value else 0.0
    margin = 1.959964 * error
    return dataclasses.replace(row, value=value, error=error, low=value - margin, high=value + margin, errors=errors)


def _paired_error(reference: DocumentScores, other: DocumentScores) -> float:
    """Return the standard error of the difference of scores of the same documents, by the delta method."""
    residuals = other.influences() - reference.influences()
    count = len(residuals)
    return math.sqrt(float(residuals @ residuals) * count / (count - 1))


def _with_seeds(row: TaskDifference, replicas: Replicas) -> TaskDifference:
    """Return a row as the difference of means over runs, with the larger of the errors over documents and over seeds;
    the same row where no run differs by its seed alone.
    """

    def values(evaluations: Sequence[Evaluations]) -> list[float]:
        identities = [one[row.suite].identity for one in evaluations if row.suite in one]
        same = [identity for identity in identities if identity["recipe"] == identities[0]["recipe"]]
        found = (identity["results"].get(row.task, {}).get(row.metric) for identity in same)
        return [score["value"] for score in found if score is not None and score["value"] is not None]

    groups = [values(group) for group in replicas.groups]
    degrees = sum(len(group) - 1 for group in groups)
    if row.value is None or degrees < 1:
        return row
    from scipy.special import stdtr, stdtrit

    squares = sum(len(group) * statistics.pvariance(group) for group in groups)
    deviation = math.sqrt(squares / degrees)
    first, second = values(replicas.reference), values(replicas.other)
    error = deviation * math.sqrt(1 / len(first) + 1 / len(second))
    seeds = Seeds(counts=(len(first), len(second)), deviation=deviation, error=error)
    value = statistics.fmean(second) - statistics.fmean(first)
    larger = max(error, row.error or 0.0)
    freedom = degrees if larger == error else math.inf
    p = 2 * float(stdtr(freedom, -abs(value) / larger)) if larger else float(value == 0)
    margin = float(stdtrit(freedom, (1 + INTERVAL) / 2)) * larger
    return dataclasses.replace(
        row,
        reference=row.reference | {"value": statistics.fmean(first)},
        other=row.other | {"value": statistics.fmean(second)},
        value=value,
        seeds=seeds,
        low=value - margin,
        high=value + margin,
        p=p,
        errors=None,
    )


def _differences(sums: np.ndarray, scores: DocumentScores) -> np.ndarray:
    """Return the differences of scores by sums [..., 4] of the columns of the reference and of the other model."""
    return scores.of_ratio(sums[:, 2] / sums[:, 3]) - scores.of_ratio(sums[:, 0] / sums[:, 1])


def _randomization_test(both: np.ndarray, scores: DocumentScores) -> float:
    """Return the p-value: the share of random swaps with a difference at least as large as the observed one."""
    total = both.sum(axis=0)
    change = (both[:, 2:] - both[:, :2])[(both[:, 2:] != both[:, :2]).any(axis=1)]
    observed = abs(_differences(total[None], scores)[0])
    larger = 0
    for swaps in _swaps(len(change)):
        moved = swaps @ change
        differences = _differences(total + np.concatenate([moved, -moved], axis=1), scores)
        larger += int((np.abs(differences) >= observed * (1 - TIES)).sum())
    return (1 + larger) / (1 + aggregations.RESAMPLES)


def _swaps(count: int) -> Iterator[np.ndarray]:
    """Yield random zeros and ones for `count` documents, [rows, count], RESAMPLES rows in all."""
    rng = np.random.default_rng(SEED)
    at_once = max(1, aggregations.BLOCK // max(1, count))
    for first in range(0, aggregations.RESAMPLES, at_once):
        rows = min(at_once, aggregations.RESAMPLES - first)
        bits = rng.integers(256, size=(rows, -(-count // 8)), dtype=np.uint8)
        yield np.unpackbits(bits, axis=1, count=count).astype(np.float64)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values that are corrected for their number (Holm, A Simple Sequentially Rejective Procedure, 1979).

    The probability of one false rejection or more among all is then at most the level, however they depend on each
    other.
    """
    order = sorted(range(len(p_values)), key=lambda number: p_values[number])
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, number in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[number]))
        corrected[number] = largest
    return corrected
