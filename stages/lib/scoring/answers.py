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

from stages.lib.scoring import aggregations
from stages.lib.scoring.aggregations import BITS_OF_ANSWER

if TYPE_CHECKING:
    from lm_eval.api.model import LM
    from lm_eval.api.task import Task


Sample = dict[str, Any]
"""A document with its requests, answers and metrics, as the harness logs it."""

Score = dict[str, float | None]
"""{"value": x, "stderr": y, "n": number of documents}"""


def has_choices(task: Task) -> bool:
    """Return True for a task that compares log-likelihoods of choices."""
    return task.get_config("output_type") == "multiple_choice"


def bits_of(task: Task, sample: Sample) -> float | None:
    """Return the bits per byte of the right answer of a document; None if it is not among the choices.

    The delimiter before an answer is no byte of it. Of several right answers it is the least; of right contexts, the
    form of winogrande, that of the text after them.
    """
    choices = task.doc_to_choice(sample["doc"])
    right = task.doc_to_text(sample["doc"]) if task.multiple_input else sample["target"]
    bits = []
    for choice in right if isinstance(right, list) else [right]:
        number = choices.index(choice) if choice in choices else choice
        if isinstance(number, (int, np.integer)) and 0 <= number < len(choices):
            answer = str(sample["target"] if task.multiple_input else choices[number])
            log_likelihood, _ = sample["resps"][number][0]
            bits += [-log_likelihood / math.log(2) / len(answer.encode())] * bool(answer)
    return min(bits, default=None)


def add_bits(task: Task, samples: Sequence[Sample]) -> None:
    """Add `bpb` to the documents of a task that has choices and no metric of that name."""
    if any(BITS_OF_ANSWER in sample for sample in samples):
        return
    for sample in samples:
        bits = bits_of(task, sample)
        if bits is not None:
            sample[BITS_OF_ANSWER] = bits
            sample["metrics"].append(BITS_OF_ANSWER)


def mean_bits(samples: Sequence[Sample]) -> dict[str, float]:
    """Return `bpb` of a task, or over all documents of a group, with its standard error, under keys of the harness."""
    entries: dict[str, float] = {}
    for filtered in dict.fromkeys(sample["filter"] for sample in samples):
        bits = [row[BITS_OF_ANSWER] for row in samples if row["filter"] == filtered and BITS_OF_ANSWER in row]
        if bits:
            entries[f"{BITS_OF_ANSWER},{filtered}"] = statistics.fmean(bits)
            if len(bits) > 1:
                entries[f"{BITS_OF_ANSWER}_stderr,{filtered}"] = statistics.stdev(bits) / math.sqrt(len(bits))
    return entries


def with_exchanged_contexts(
    model: LM, task: Task, samples: Sequence[Sample], seed: int, is_local: bool
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
    requests = []
    for number, row in enumerate(rows):
        contexts = [context for context, _ in rows[following[number]]["arguments"] if context] or [""]
        for index, (context, answer) in enumerate(row["arguments"]):
            exchanged = contexts[index % len(contexts)] if context else ""  # "": the answer alone, of acc_mutual_info
            metadata = (task.config.task, row["doc_id"], 1)
            requests.append(Instance("loglikelihood", row["doc"], (exchanged, answer), index, metadata))
    responses = iter(model.loglikelihood(requests))
    values: dict[str, list[Any]] = {}
    for row in rows:
        own = [next(responses) for _ in row["arguments"]]
        metrics = dict(task.process_results(row["doc"], own))
        bits = bits_of(task, row | {"resps": [[response] for response in own]})
        for name, value in metrics.items() if bits is None else (metrics | {BITS_OF_ANSWER: bits}).items():
            values.setdefault(name, []).append(value)
    origins = [row["doc"]["document"] for row in rows] if is_local else None
    scores: dict[str, Score] = {}
    for name, of_metric in values.items():
        same = origins if origins is not None and len(of_metric) == len(rows) else None
        found = aggregations.document_scores(name, of_metric, same)
        if found is not None:
            scores[name] = {"value": found.score(), "stderr": found.standard_error(), "n": len(of_metric)}
    return scores
