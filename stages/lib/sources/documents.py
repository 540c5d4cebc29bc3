"""The documents of a source. A malformed record and a filtered document are yielded with their reason."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from stages.lib.errors import UserError
from stages.lib.sources import filters
from stages.lib.sources.entries import Document, Filtered, Malformed
from stages.lib.sources.kinds.registry import DOCUMENT_KINDS, kind_of

if TYPE_CHECKING:
    from stages.lib.sources.filters import FilterRecipe
    from stages.lib.sources.source import SourceRecipe
    from stages.lib.sources.spans import Span
    from stages.lib.sources.storage import Status

Entry = Document | Malformed | Filtered
AnyEntry = TypeVar("AnyEntry", bound=Entry)

FILTERED_AT_ONCE = 1 << 20  # characters of text that are filtered together
RECORD_BYTES = 100  # memory of a document besides its text


def read(
    recipe: SourceRecipe, chosen: Sequence[Span], every_name: Sequence[str], before: Mapping[str, Status] | None = None
) -> Iterator[Entry]:
    """Yield a Document, Malformed or Filtered for each record of the spans `chosen`.

    `every_name`: all files of the source; python-prose excludes what stands in several of them.
    `before`: `inputs.states` of the files; default: their states when reading begins.
    Raises UserError if the source holds prompt-completion data, or a file changes before its last record was read.
    """
    found = _read(recipe, chosen, every_name, before or {})
    return _filtered(recipe.filters, found) if recipe.filters.some else found


def _read(
    recipe: SourceRecipe, chosen: Sequence[Span], every_name: Sequence[str], before: Mapping[str, Status]
) -> Iterator[Document | Malformed]:
    kind = kind_of(recipe)
    if not kind.has_documents:
        raise UserError(
            f"a source of a tokenizer or a corpus must be of the kind {', '.join(DOCUMENT_KINDS[:-1])} or "
            f"{DOCUMENT_KINDS[-1]}, got {recipe.kind}, which is for fine-tuning"
        )
    yield from kind.documents(recipe, chosen, every_name, before)


def _filtered(recipe: FilterRecipe, found: Iterable[Document | Malformed]) -> Iterator[Entry]:
    """Yield the entries, with Filtered in place of each document that a filter rejects; many are filtered together."""
    for batch in batched(found, FILTERED_AT_ONCE):
        texts = [entry.text for entry in batch if isinstance(entry, Document)]
        broken = iter(filters.first_broken(recipe, texts))
        for entry in batch:
            reason = next(broken) if isinstance(entry, Document) else None
            yield entry if reason is None else Filtered(entry.id, reason, entry.text or "")


def batched(found: Iterable[AnyEntry], size: int) -> Iterator[list[AnyEntry]]:
    """Yield lists of entries, in order, each of about `size` characters of text or bytes of ids (more if
    one document has more).
    """
    batch: list[AnyEntry] = []
    held = 0
    for entry in found:
        batch.append(entry)
        ids = getattr(entry, "ids", None)
        held += RECORD_BYTES + (len(entry.text or "") if ids is None else ids.nbytes)
        if held >= size:
            yield batch
            batch, held = [], 0
    if batch:
        yield batch
