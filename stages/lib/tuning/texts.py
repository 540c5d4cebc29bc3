"""The documents of a source that stages.list lists, as examples to fine-tune on."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path

from stages.lib.errors import UserError
from stages.lib.sources import documents, examples, source, spans
from stages.lib.sources.entries import Document
from stages.lib.sources.examples import ExampleSource
from stages.lib.sources.filtered import FilterCounts
from stages.lib.sources.kinds.registry import DOCUMENT_KINDS
from stages.lib.sources.source import SourceRecipe


def read(path: Path | str) -> ExampleSource[Document]:
    """Read the documents of a source; arguments as of `prompt_completion.read`.

    Raises UserError if its documents are token ids, more records are malformed than `max_malformed` allows, or a file
    is not as it was listed.
    """
    _, name, _ = source.read_list(path)
    return examples.read(path, DOCUMENT_KINDS, "documents", functools.partial(_records, name))


def _records(name: str, recipe: SourceRecipe, names: Sequence[str]) -> Iterator[Document]:
    """Yield the documents of the files `names` that are neither malformed nor filtered."""
    if recipe.token_ids_field is not None:
        raise UserError(f"sources.{name}.token_ids_field must be left out to fine-tune on it: only text is read")
    counts = FilterCounts(name, recipe.max_malformed)
    for entry in documents.read(recipe, spans.whole(names), names):
        if (kept := counts.keep(entry)) is not None:
            yield kept
    counts.check()
