"""Tasks with choices beyond the harness's metrics: how likely the right answer is, and whether its question is read.

`bpb` is -log2 P(answer | context) per byte of the right answer, by the log-likelihoods of the harness's own requests.
Accuracies of small models stay at chance while it falls (Heineman et al., Signal and Noise, 2025, arXiv:2508.13144).

Exchanged contexts are a control: each answer is scored after the question of another document. A model that scores as
well there knows the answers by themselves, not by their questions.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from stages.lib.manifest_types import Score
from stages.lib.scoring import aggregations
from stages.lib.scoring.aggregations import BITS_OF_ANSWER, CENTERED, TOKEN_ACCURACY

if TYPE_CHECKING:
    from lm_eval.api.task import Task

    from stages.lib.scoring.encoding import Encoding

ADDED = (BITS_OF_ANSWER, TOKEN_ACCURACY, CENTERED)
"""Metrics that are added to those of the harness."""

Sample = dict[str, Any]
"""A document with its requests, answers and metrics, as the harness logs it."""


def has_choices(task: Task) -> bool:
    """Return True for a task that compares log-likelihoods of choices."""
    return task.get_config("output_type") == "multiple_choice"


def bits_of(task: Task, sample: Sample) -> float | None:
    """Return the bits per byte of the right answer of a document; None if it is not among the choices.

    The delimiter before an answer is no byte of it. Of several right answers it is the least; of right contexts, the
    form of winogrande, that of the text after them.
    """
    choices, bits = task.doc_to_choice(sample["doc"]), []
    for number in _right_choices(task, sample, choices):
        answer = str(sample["target"] if task.multiple_input else choices[number])
        log_likelihood, _ = sample["resps"][number][0]
        bits += [-log_likelihood / math.log(2) / len(answer.encode())] * bool(answer)
    return min(bits, default=None)


def _right_choices(task: Task, sample: Sample, choices: Sequence[str]) -> list[int]:
    """Return the numbers of the right choices of a document, which a task gives as numbers or as texts."""
    right = task.doc_to_text(sample["doc"]) if task.multiple_input else sample["target"]
    several = right if isinstance(right, list) else [right]
    numbers = (choices.index(one) if one in choices else one for one in several)
    return [int(one) for one in numbers if isinstance(one, (int, np.integer)) and 0 <= one < len(choices)]


def add_metrics(model: Encoding, task: Task, samples: Sequence[Sample]) -> None:
    """Add to the documents of a task what ADDED names, where it applies and the task has no metric of that name.

    `acc_token` and `centered` are those of tasks with `metadata: {chance: X}` in their file: of choices, the one with
    the highest mean log-likelihood per token counts as the answer; other tasks are right by `acc`.
    """
    metadata = task.config.metadata if isinstance(task.config.metadata, dict) else {}
    chance = metadata.get("chance")
    for sample in samples:
        added = {BITS_OF_ANSWER: bits_of(task, sample) if has_choices(task) else None}
        if isinstance(chance, (int, float)) and chance < 1:
            right = _is_likeliest_per_token(model, task, sample) if has_choices(task) else sample.get("acc")
            added |= {TOKEN_ACCURACY: right} if has_choices(task) else {}
            added[CENTERED] = None if right is None else (right - chance) / (1 - chance)
        for name, value in added.items():
            if value is not None and name not in sample:
                sample[name] = value
                sample["metrics"].append(name)


def _is_likeliest_per_token(model: Encoding, task: Task, sample: Sample) -> float:
    choices = task.doc_to_choice(sample["doc"])
    means = [
        sample["resps"][number][0][0] / len(model.ids_of(*sample["arguments"][number])[1])
        for number in range(len(choices))
    ]
    return float(means.index(max(means)) in _right_choices(task, sample, choices))


def means_of(members: Sequence[Sequence[Sample]]) -> dict[str, float]:
    """Return the means of what was added to the documents of a task, or of a group's tasks, under keys of the harness.

    They have standard errors. `bpb` and `acc_token` are means over all documents; `centered` of a group is the mean
    over its tasks, each with the same weight. A group has those that all its tasks have.
    """
    entries: dict[str, float] = {}
    for filtered in dict.fromkeys(sample["filter"] for of_task in members for sample in of_task):
        for name in ADDED:
            values = [[row[name] for row in rows if row["filter"] == filtered and name in row] for rows in members]
            if not all(values):
                continue
            groups = values if name == CENTERED else [[value for of_task in values for value in of_task]]
            entries[f"{name},{filtered}"] = statistics.fmean(statistics.fmean(group) for group in groups)
            if all(len(group) > 1 for group in groups):
                variances = [statistics.variance(group) / len(group) for group in groups]
                entries[f"{name}_stderr,{filtered}"] = math.sqrt(sum(variances)) / len(groups)
    return entries


def with_exchanged_contexts(
    model: Encoding, task: Task, samples: Sequence[Sample], seed: int, is_local: bool
) -> dict[str, Score]:
    """Return {metric: score} of the answers of a task's documents, each after the context of another; {} for one.

    The documents stand in a circle that `seed` shuffles, and each takes the context of the next, with its solved
    examples. Metrics that are no function of a sum over documents are left out. `is_local`: the documents are cut from
    fewer, which the standard errors resample.
    """
    from lm_eval.api.instance import Instance

    rows = [sample for sample in samples if sample["filter"] == samples[0]["filter"]]
    circle = random.Random(seed).sample(range(len(rows)), len(rows))
    following = dict(zip(circle, circle[1:] + circle[:1], strict=True))
    if len(rows) < 2:
        return {}
    again = []
    for number, row in enumerate(rows):
        contexts = [context for context, _ in rows[following[number]]["arguments"] if context] or [""]
        arguments = [  # "": the answer alone, of acc_mutual_info
            (contexts[index % len(contexts)] if context else "", answer)
            for index, (context, answer) in enumerate(row["arguments"])
        ]
        again.append({name: row[name] for name in ("doc_id", "doc", "target")} | {"arguments": arguments})
    requests = [
        Instance("loglikelihood", row["doc"], pair, index, (task.config.task, row["doc_id"], 1))
        for row in again
        for index, pair in enumerate(row["arguments"])
    ]
    responses = iter(model.loglikelihood(requests))
    for row in again:
        own = [next(responses) for _ in row["arguments"]]
        metrics = task.process_results(row["doc"], own)
        row |= {"resps": [[response] for response in own], "metrics": [*metrics], **metrics}
    add_metrics(model, task, again)
    values: dict[str, list[Any]] = {}
    for row in again:
        for name in row["metrics"]:
            values.setdefault(name, []).append(row[name])
    origins = [row["doc"]["document"] for row in rows] if is_local else None
    scores: dict[str, Score] = {}
    for name, of_metric in values.items():
        same = origins if origins is not None and len(of_metric) == len(rows) else None
        found = aggregations.document_scores(name, of_metric, same)
        if found is not None:
            scores[name] = {"value": found.score(), "stderr": found.standard_error(), "n": len(of_metric)}
    return scores
