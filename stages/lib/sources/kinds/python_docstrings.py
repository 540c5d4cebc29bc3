"""The kind `python-docstrings`: function headers of the Python installation, and first lines of their docstrings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from stages.lib.sources import python_docstrings
from stages.lib.sources.kinds.standard_library import StandardLibraryKind

if TYPE_CHECKING:
    from stages.lib.sources.source import SourceRecipe


class PythonDocstrings(StandardLibraryKind):
    """A prompt is a function's header, its completion the first line of the docstring."""

    name = "python-docstrings"
    fields = ("filters",)
    needs_every_file = True
    is_prompt_completion = True

    def pairs(self, recipe: SourceRecipe, names: Sequence[str]) -> Iterator[tuple[str, str, str, str]]:
        """Yield (id, split key, prompt, completion) of each pair in the modules `names`."""
        return python_docstrings.pairs(names, names)
