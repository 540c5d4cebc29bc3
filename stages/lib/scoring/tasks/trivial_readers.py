"""Trivial readers: rules without a model that answer the local tasks.

A score that such a rule reaches shows no more understanding than the rule has. Each rule rates the choices of a
question; of several that are rated highest, one is drawn, so that a question then counts 1 / (their number).
"""

from __future__ import annotations

import collections
import math
import re
import statistics
from collections.abc import Callable, Sequence

from stages.lib.scoring import aggregations
from stages.lib.scoring.tasks.task import ReaderScores, Row

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


def _mean(credits: Sequence[float], rows: Sequence[Row]) -> dict[str, float | None]:
    documents = [row.get("document", str(number)) for number, row in enumerate(rows)]
    scores = aggregations.document_scores("acc", credits, documents)
    assert scores is not None
    return {"value": statistics.mean(credits), "stderr": scores.standard_error(), "n": len(credits)}


def _indent_of(line: str) -> int:
    return len(line) - len(line.lstrip(" \t"))


def _last_line(context: str) -> str:
    """Return the last line that is not blank."""
    return next((line for line in reversed(context.split("\n")) if line.strip()), "")
