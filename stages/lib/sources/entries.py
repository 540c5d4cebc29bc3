"""The entries of a source: a document, a malformed record, a filtered document; and the split of documents."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeVar

import numpy as np

from stages.lib.manifest_types import SplitName

T = TypeVar("T")

TRAIN: Final = "train"
VALIDATION: Final = "validation"


def split_of(key: str, fraction: float) -> SplitName:
    """Return `validation` for about `fraction` of all keys, else `train`. A larger fraction only adds keys to it."""
    drawn = int.from_bytes(hashlib.sha256(f"split/{key}".encode()).digest()[:8], "big") / 2**64
    return VALIDATION if drawn < fraction else TRAIN


@dataclass(frozen=True)
class Document:
    """A document with an id that is unique in its source. `split`: train or validation.

    `ids`: token ids [L] of a pre-tokenized document, an integer array; `text` is None then. `masked`: {kind: number} of
    what is masked in the text. `language`: the code of its language, if a filter identified it.
    """

    id: str
    text: str | None
    split: str
    ids: np.ndarray | None = None
    masked: Mapping[str, int] | None = None
    language: str | None = None


@dataclass(frozen=True)
class Malformed:
    """A record that is no document, and the reason."""

    id: str
    reason: str
    text: ClassVar[None] = None


@dataclass(frozen=True)
class Filtered:
    """A document that is filtered, the reason, and its text (empty for token ids). `value`: what the filter measured;
    `language` as of Document."""

    id: str
    reason: str
    text: str
    value: float | str | None = None
    language: str | None = None


def field_of(record: Mapping[str, Any], name: str, *default: Any) -> Any:
    """Return a field of a record by its name; `doc.text` is the field text of the mapping in the field doc, unless the
    record has a field of that very name.

    Returns the `default` for a missing field. Raises KeyError if there is no default.
    """
    if name in record:
        return record[name]
    first, dot, rest = name.partition(".")
    while dot:
        if isinstance(inner := record.get(first), Mapping):
            return field_of(inner, rest, *default)
        more, dot, rest = rest.partition(".")
        first = f"{first}.{more}"
    if default:
        return default[0]
    raise KeyError(name)


def grouped(items: Iterable[T], size_of: Callable[[T], int], size: int) -> Iterator[list[T]]:
    """Yield lists of items, in order, each of at least `size` together but the last."""
    group: list[T] = []
    held = 0
    for item in items:
        group.append(item)
        held += size_of(item)
        if held >= size:
            yield group
            group, held = [], 0
    if group:
        yield group
