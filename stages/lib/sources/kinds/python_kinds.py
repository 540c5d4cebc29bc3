"""The kinds `python-*`, whose files are the modules of the Python installation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stages.lib.sources import python_source, storage
from stages.lib.sources.entries import Document, Malformed, document_of_text
from stages.lib.sources.kinds.kind import SourceKind
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


class PythonCode(StandardLibraryKind):
    """A document is a module."""

    name = "python-code"

    def texts(self, names: Sequence[str], every_name: Sequence[str]) -> Iterable[tuple[str, str, bytes]]:
        """Yield (id, split key, text) of the modules `names`."""
        return python_source.code(names)


class PythonProse(StandardLibraryKind):
    """A document is the docstrings of a module. A docstring that stands in several modules is excluded."""

    name = "python-prose"
    needs_every_file = True

    def texts(self, names: Sequence[str], every_name: Sequence[str]) -> Iterable[tuple[str, str, str]]:
        """Yield (id, split key, text) of the modules `names`."""
        return python_source.prose(names, every_name)


class PythonStatements(StandardLibraryKind):
    """A prompt is a statement, its completion says what it does."""

    name = "python-statements"
    fields = ("filters",)
    needs_every_file = True
    is_prompt_completion = True

    def pairs(self, recipe: SourceFields, names: Sequence[str]) -> Iterator[tuple[str, str, str, str]]:
        """Yield (id, split key, prompt, completion) of each pair in the modules `names`."""
        return python_source.pairs(names, names)
