"""The kind `python-statements`: statements of the Python installation, and what they do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from stages.lib.sources.kinds.standard_library import StandardLibraryKind
from stages.lib.sources.python_installation import python_statements

if TYPE_CHECKING:
    from stages.lib.sources.source_fields import SourceFields


class PythonStatements(StandardLibraryKind):
    """A prompt is a statement, its completion says what it does."""

    name = "python-statements"
    fields = ("filters",)
    needs_every_file = True
    is_prompt_completion = True

    def pairs(self, recipe: SourceFields, names: Sequence[str]) -> Iterator[tuple[str, str, str, str]]:
        """Yield (id, split key, prompt, completion) of each pair in the modules `names`."""
        return python_statements.pairs(names, names)
