"""The kinds of sources whose files are the modules of the Python installation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stages.lib.sources import storage
from stages.lib.sources.entries import Document, Malformed, document_of_text
from stages.lib.sources.kinds.kind import SourceKind
from stages.lib.sources.python_installation import python_source
from stages.lib.sources.storage import Status

if TYPE_CHECKING:
    from stages.lib.sources.source_fields import SourceFields
    from stages.lib.sources.spans import Span


class StandardLibraryKind(SourceKind):
    """A kind without paths. Documents are split by module."""

    needs_paths = False

    def root(self) -> Path:
        """Return the directory of the standard library."""
        return python_source.root()

    def own_files(self) -> dict[str, Status]:
        """Return {module file: Status}, sorted."""
        return {name: storage.status(python_source.root() / name) for name in python_source.modules()}

    def texts(self, names: Sequence[str], every_name: Sequence[str]) -> Iterable[tuple[str, str, str | bytes]]:
        """Yield (id, split key, text) of the documents of the modules `names`."""
        raise NotImplementedError(self.name)

    def documents(
        self, recipe: SourceFields, chosen: Sequence[Span], every_name: Sequence[str], before: Mapping[str, Status]
    ) -> Iterator[Document | Malformed]:
        """Yield the documents of the modules `chosen`; no module changes while it is read."""
        for identifier, key, text in self.texts([span.name for span in chosen], every_name):
            yield document_of_text(recipe, identifier, text, key)
