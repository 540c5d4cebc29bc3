"""The kind `python-code`: the modules of the Python installation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stages.lib.sources.kinds.standard_library import StandardLibraryKind
from stages.lib.sources.python_installation import python_source


class PythonCode(StandardLibraryKind):
    """A document is a module."""

    name = "python-code"

    def texts(self, names: Sequence[str], every_name: Sequence[str]) -> Iterable[tuple[str, str, bytes]]:
        """Yield (id, split key, text) of the modules `names`."""
        return python_source.code(names)
