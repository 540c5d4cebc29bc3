"""Overlaps of a part of a corpus with items: which of an item's n-grams stand in its documents, with an example."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from stages.lib.contamination.items import Item
from stages.lib.contamination.ngram_index import NgramIndex
from stages.lib.contamination.rules import RULES, ContaminationRecipe
from stages.lib.manifest_types import ContaminatedItems

Row = dict[str, Any]
"""An item with an n-gram that was found: `task`, `doc_id`, `ngrams` (how many it has), `found` (which of them), and
`example` {"source", "part", "document"}: the first document that holds one, by its number in the part's shards."""


def search(index: NgramIndex, documents: Iterable[tuple[int, str]]) -> np.ndarray:
    """Return for each n-gram of the index the first document that holds it, -1 without one: int64 [n-grams]."""
    first = np.full(index.num_ngrams, -1, np.int64)
    for hits, of_hits in index.search(documents):
        ngrams, at = np.unique(hits, return_index=True)
        keys = np.array(of_hits, np.int64)[at]
        new = first[ngrams] < 0
        first[ngrams[new]] = keys[new]
    return first


def rows_of(items: Sequence[Item], index: NgramIndex, first: np.ndarray, **place: Any) -> list[Row]:
    """Return a row for each item with an n-gram that was found. `place`: `source` and `part` of the examples."""
    rows = []
    for item, ngrams in zip(items, index.of_item, strict=True):
        found = np.flatnonzero(first[ngrams] >= 0)
        if len(found):
            example = {**place, "document": int(first[ngrams[found[0]]])}
            described = {"task": item.task, "doc_id": item.doc_id, "ngrams": len(ngrams), "found": found.tolist()}
            rows.append(described | {"example": example})
    return rows


def counts_of(items: Sequence[Item], index: NgramIndex) -> dict[str, dict[str, int]]:
    """Return {task: {"n": items, "unchecked": items without an n-gram}}."""
    counts: dict[str, dict[str, int]] = {}
    for item, ngrams in zip(items, index.of_item, strict=True):
        of_task = counts.setdefault(item.task, {"n": 0, "unchecked": 0})
        of_task["n"] += 1
        of_task["unchecked"] += not len(ngrams)
    return counts


def merged(parts: Iterable[Iterable[Row]], recipe: ContaminationRecipe) -> list[Row]:
    """Return the rows of all parts, one per item, in order, each with `contaminated` by the rule."""
    found: dict[tuple[str, int], Row] = {}
    for rows in parts:
        for row in rows:
            known = found.setdefault((row["task"], row["doc_id"]), row)
            known["found"] = sorted({*known["found"], *row["found"]})
    rule = RULES[recipe.rule]
    return [
        row | {"contaminated": rule.is_contaminated(len(row["found"]), row["ngrams"])}
        for _, row in sorted(found.items(), key=lambda entry: entry[0])
    ]


def rates(counts: dict[str, dict[str, int]], rows: Iterable[Row]) -> dict[str, ContaminatedItems]:
    """Return {task: counts}; the rate is the contaminated share of all items."""
    contaminated = dict.fromkeys(counts, 0)
    for row in rows:
        contaminated[row["task"]] += row["contaminated"]
    return {
        task: {
            "n": of_task["n"],
            "contaminated": contaminated[task],
            "rate": contaminated[task] / of_task["n"],
            "unchecked": of_task["unchecked"],
        }
        for task, of_task in counts.items()
    }
