"""Removal of training documents that hold an n-gram of an item."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from stages.lib import manifest
from stages.lib.contamination import items
from stages.lib.contamination.items import Item
from stages.lib.contamination.ngram_index import NgramIndex
from stages.lib.errors import UserError
from stages.lib.sources.documents import Entry, batched
from stages.lib.sources.entries import Document, Filtered
from stages.lib.sources.split import TRAIN

REASON = "contaminated"
SEARCHED_AT_ONCE = 1 << 20  # characters of documents that are held


def read_items(paths: Sequence[Path], suites: Sequence[str]) -> tuple[list[Item], dict[str, str]]:
    """Read the items of the suites; return them, and {suite: digest of its items}.

    Raises UserError unless `paths` are the manifests of these suites.
    """
    listed = [manifest.read(path, "list_items") for path in paths]
    digests = {made.identity["suite"]: made.digest for made in listed}
    if sorted(made.identity["suite"] for made in listed) != sorted(suites):
        named = ", ".join(sorted(suites))
        expected = f"the items of {named}, as tokenize.decontaminate" if named else "left out without decontaminate"
        raise UserError(f"--items must be {expected}, got {', '.join(sorted(digests)) or 'none'}")
    return [item for made in listed for item in items.read(made)], dict(sorted(digests.items()))


def without(found: Iterable[Entry], index: NgramIndex, text_of: Callable[[Document], str]) -> Iterator[Entry]:
    """Yield the entries, with Filtered in place of each training document that holds an n-gram of the index.

    Validation documents stay: nothing is trained on them.
    """
    for batch in batched(found, SEARCHED_AT_ONCE):
        training = (
            (number, text_of(entry))
            for number, entry in enumerate(batch)
            if isinstance(entry, Document) and entry.split == TRAIN
        )
        contaminated = {number for hits in index.search(training) for number in hits.keys}
        for number, entry in enumerate(batch):
            yield Filtered(entry.id, REASON, entry.text or "") if number in contaminated else entry
