"""Tasks of lm-evaluation-harness as files: NAME.yaml beside NAME.jsonl, which its own command line reads too.

Each format has trivial readers: rules without a model that answer the task. A score that such a rule reaches shows no
more understanding than the rule has. Each rule rates the choices of a question; of several that are rated highest, one
is drawn, so that a question then counts 1 / (their number).
"""

from __future__ import annotations

import collections
import json
import math
import re
import shutil
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from stages.lib import files
from stages.lib.manifest_types import Score
from stages.lib.scoring import aggregations
from stages.lib.scoring.tasks import completion_score, generation_score
from stages.lib.scoring.tasks.task import HarnessFormat, ReaderScores, Row

WORD = re.compile(r"\w+")

Ratings = list[list[float]]
"""Of each question: the ratings of its choices."""


def _first(questions: Sequence[Row]) -> Ratings:
    """The first choice."""
    return [[-number for number, _ in enumerate(question["choices"])] for question in questions]


def _longest(questions: Sequence[Row]) -> Ratings:
    """The longest choice."""
    return [[len(choice.encode()) for choice in question["choices"]] for question in questions]


def _unigram(questions: Sequence[Row]) -> Ratings:
    """The choice whose words are the most common among all choices, on average."""
    counts = collections.Counter(word for question in questions for text in question["choices"] for word in words(text))

    def rating(choice: str) -> float:
        return statistics.mean([math.log(counts[word]) for word in words(choice)] or [0.0])

    return [[rating(choice) for choice in question["choices"]] for question in questions]


def _indent(questions: Sequence[Row]) -> Ratings:
    """The choice whose indent is the nearest to that of the context's last line."""
    return [
        [-abs(_indent_of(choice) - _indent_of(_last_line(question["context"]))) for choice in question["choices"]]
        for question in questions
    ]


def _shared_words(questions: Sequence[Row]) -> Ratings:
    """The choice that shares the most words with the context; a word counts by its rarity among all contexts."""
    contexts = [set(words(question["context"])) for question in questions]
    counts = collections.Counter(word for context in contexts for word in context)

    def rating(choice: str, context: set[str]) -> float:
        return sum(math.log(1 + len(contexts) / counts[word]) for word in context.intersection(words(choice)))

    return [
        [rating(choice, context) for choice in question["choices"]]
        for question, context in zip(questions, contexts, strict=True)
    ]


OF_CHOICES: dict[str, Callable[[Sequence[Row]], Ratings]] = {
    "first": _first,
    "longest": _longest,
    "unigram": _unigram,
    "indent": _indent,
    "shared_words": _shared_words,
}
"""Readers of questions with `context`, `choices` and `answer`."""


def accuracies(questions: Sequence[Row]) -> ReaderScores:
    """Return the accuracy of each reader of choices."""
    return {
        name: _mean([_credit(*rated) for rated in zip(rate(questions), questions, strict=True)], questions)
        for name, rate in OF_CHOICES.items()
    }


def bits_of_texts(rows: Sequence[Row]) -> ReaderScores:
    """Return the bits per byte of each reader of `text`."""
    return _bits([row["text"] for row in rows])


def bits_of_completions(rows: Sequence[Row]) -> ReaderScores:
    """Return the bits per byte of each reader of `completion`."""
    return _bits([row["completion"] for row in rows])


def exact_matches(rows: Sequence[Row]) -> ReaderScores:
    """Return the exact match of a reader that always answers the completion that most rows have."""
    ((common, _),) = collections.Counter(row["completion"] for row in rows).most_common(1)
    return {"most_common": _mean([float(row["completion"] == common) for row in rows], rows)}


def _bits(texts: Sequence[str]) -> ReaderScores:
    """Return the bits per byte of a reader that knows how often each byte stands in these very texts."""
    counts = collections.Counter(byte for text in texts for byte in text.encode())
    total = counts.total()
    bits = -sum(count * math.log2(count / total) for count in counts.values()) / total
    return {"unigram": {"value": bits, "stderr": None, "n": len(texts)}}


def words(text: str) -> list[str]:
    """Return the words of a text in lower case."""
    return WORD.findall(text.lower())


def _credit(ratings: Sequence[float], question: Row) -> float:
    best = [number for number, rating in enumerate(ratings) if rating == max(ratings)]
    return (question["answer"] in best) / len(best)


def _mean(credits: Sequence[float], rows: Sequence[Row]) -> Score:
    documents = [row.get("document", str(number)) for number, row in enumerate(rows)]
    scores = aggregations.document_scores("acc", credits, documents)
    assert scores is not None
    return {"value": statistics.mean(credits), "stderr": scores.standard_error(), "n": len(credits)}


def _indent_of(line: str) -> int:
    return len(line) - len(line.lstrip(" \t"))


def _last_line(context: str) -> str:
    """Return the last line that is not blank."""
    return next((line for line in reversed(context.split("\n")) if line.strip()), "")


MAX_NEW_TOKENS = 64
"""Tokens that a model generates at most, EOS included: a model that never stops generates all of them."""


def _metric(name: str, aggregation: str, higher_is_better: bool) -> dict[str, Any]:
    return {"metric": name, "aggregation": aggregation, "higher_is_better": higher_is_better}


ROLLING = HarnessFormat(
    config={
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "text",
        "metric_list": [
            _metric("bits_per_byte", "bits_per_byte", higher_is_better=False),
            _metric("byte_perplexity", "weighted_perplexity", higher_is_better=False),
        ],
    },
    trivial=bits_of_texts,
)
"""The log-likelihood of all of each row's `text`."""

MULTIPLE_CHOICE = HarnessFormat(
    config={
        "output_type": "multiple_choice",
        "doc_to_text": "context",
        "doc_to_choice": "choices",
        "doc_to_target": "answer",
        "target_delimiter": "",
        "metric_list": [_metric("acc_mutual_info", "mean", higher_is_better=True)],
    },
    trivial=accuracies,
)
"""Questions: `context`, `choices`, and `answer`, the index of the right choice.

The predicted choice is the one whose log p(choice | context) - log p(choice) is highest. The wrong choices are right
ones of other questions, so a model that has not read the context expects each with p(choice); by Bayes' rule the odds
that a choice is right are then p(choice | context) / p(choice). A model of 5 M parameters after 0.5 M tokens was right
in 0.52 of 400 questions of next_line by this rule, and in 0.29 by log p(choice | context) alone, which mostly measures
how common a line is.
"""

COMPLETION = HarnessFormat(
    config={
        "output_type": "loglikelihood",
        "doc_to_text": "context",
        "doc_to_target": "completion",
        "target_delimiter": "",
        "metric_list": [_metric("bits_per_byte", "mean", higher_is_better=False)],
    },
    trivial=bits_of_completions,
    score_file=Path(completion_score.__file__),
)
"""The log-likelihood of each row's `completion` after its `context`."""

GENERATION = HarnessFormat(
    config={
        "output_type": "generate_until",
        "doc_to_text": "context",
        "doc_to_target": "completion",
        "target_delimiter": "",
        "generation_kwargs": {"until": [], "do_sample": False, "max_gen_toks": MAX_NEW_TOKENS},
        "metric_list": [_metric(name, "mean", higher_is_better=True) for name in ("exact_match", "stopped")],
    },
    trivial=exact_matches,
    score_file=Path(generation_score.__file__),
)
"""The text that a model generates after each row's `context`, which must be its `completion`."""


def write(directory: Path, name: str, task_format: HarnessFormat, rows: Sequence[Row]) -> None:
    """Write a task. The path of NAME.jsonl in NAME.yaml is absolute: `datasets` resolves it in the working directory.

    NAME.py is a copy of the format's score file, which the harness imports from beside the YAML file.
    """
    import yaml

    data = directory / f"{name}.jsonl"
    with files.atomic(data, "w") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    if task_format.score_file is not None:
        shutil.copyfile(task_format.score_file, directory / f"{name}.py")
    head = {"task": name, "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(data.resolve())}},
            "test_split": "test"}  # fmt: skip
    config = {**head, **task_format.config, "metadata": {"version": 1}}
    with files.atomic(directory / f"{name}.yaml", "w") as file:
        yaml.safe_dump(config, file, sort_keys=False, allow_unicode=True)
        if task_format.score_file is not None:
            file.write(f"process_results: !function {name}.score\n")
