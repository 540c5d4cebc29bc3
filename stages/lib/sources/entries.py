"""The entries of a source: a document, a malformed record, a filtered document."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from stages.lib.sources.split import split_of

if TYPE_CHECKING:
    import numpy as np

    from stages.lib.sources.source_fields import SourceFields

HASHED_IDS = 1 << 20  # ids that are converted to 8 bytes each at once


@dataclass(frozen=True)
class Document:
    """A document with an id that is unique in its source. `split`: train or validation.

    `ids`: token ids [L] of a pre-tokenized document, an integer array; `text` is None then.
    """

    id: str
    text: str | None
    split: str
    ids: np.ndarray | None = None


@dataclass(frozen=True)
class Malformed:
    """A record that is no document, and the reason."""

    id: str
    reason: str
    text: ClassVar[None] = None


@dataclass(frozen=True)
class Filtered:
    """A document that is filtered, the reason, and its text (empty for token ids)."""

    id: str
    reason: str
    text: str


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


def document_of_text(
    recipe: SourceFields, identifier: str, text: str | bytes, key: str | None = None
) -> Document | Malformed:
    """Return the Document of a text. `key`: the split key; default: the id."""
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8-sig")
        except UnicodeDecodeError:
            return Malformed(identifier, "not UTF-8")
    return Document(identifier, text, split_of(key or identifier, recipe.validation))


def document_of_fields(recipe: SourceFields, identifier: str, record: Mapping[str, Any]) -> Document | Malformed:
    """Return the Document of a record with fields; Malformed if a field that the recipe names is missing or wrong."""
    if recipe.id_field is not None:
        value = field_of(record, recipe.id_field, None)
        if not isinstance(value, (str, int)):
            return Malformed(identifier, f"no text or whole number in {recipe.id_field}")
        identifier = str(value)
    text: Any = None
    ids: Any = None
    if recipe.token_ids_field is None:
        text = field_of(record, recipe.text_field, None)
        if not isinstance(text, str):
            return Malformed(identifier, f"no text in {recipe.text_field}")
    else:
        ids = record[recipe.token_ids_field]
        if not hasattr(ids, "dtype"):
            return Malformed(identifier, f"no token ids in {recipe.token_ids_field}")
    if recipe.split_field is None:
        key = hashlib.sha256(text.encode()).hexdigest() if ids is None else _digest_of_ids(ids)
    elif isinstance(value := field_of(record, recipe.split_field, None), (str, int)):
        key = str(value)
    else:  # null as well: it would put all these records into one split
        return Malformed(identifier, f"no text or whole number in {recipe.split_field}")
    return Document(identifier, text, split_of(key, recipe.validation), ids)


def _digest_of_ids(ids: np.ndarray) -> str:
    hashing = hashlib.sha256()
    for begin in range(0, len(ids), HASHED_IDS):
        hashing.update(ids[begin : begin + HASHED_IDS].astype("<i8"))  # type: ignore[arg-type]
    return hashing.hexdigest()
