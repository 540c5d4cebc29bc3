"""The kind `python-prose`: the docstrings of the Python installation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stages.lib.sources.kinds.standard_library import StandardLibraryKind
from stages.lib.sources.python_installation import python_source


class PythonProse(StandardLibraryKind):
    """A document is the docstrings of a module. A docstring that stands in several modules is excluded."""

    name = "python-prose"
    needs_every_file = True

    def texts(self, names: Sequence[str], every_name: Sequence[str]) -> Iterable[tuple[str, str, str]]:
        """Yield (id, split key, text) of the modules `names`."""
        return python_source.prose(names, every_name)
