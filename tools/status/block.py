"""A block of lines that is refreshed in place on a terminal, and repeated in a file or a pipe."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from typing import TextIO

WIDTH, HEIGHT = 80, 24
"""Of a terminal that does not tell its size, in characters."""

FILE_WIDTH, FILE_HEIGHT = 120, 10_000
UP, CLEAR_LINE, CLEAR_BELOW, CLEAR_ALL = "\x1b[{}A", "\x1b[K", "\x1b[J", "\x1b[H\x1b[2J"


class Block:
    """Lines on `stream`. Nothing has to be restored at the end: the cursor stands below the last lines."""

    def __init__(self, stream: TextIO) -> None:
        self.stream, self.terminal = stream, stream.isatty()
        self._shown = 0
        self._size: os.terminal_size | None = None

    def size(self) -> os.terminal_size:
        """Return (columns, lines) that a block may have; a file has no limit on lines."""
        if not self.terminal:
            columns = os.environ.get("COLUMNS", "")
            return os.terminal_size((int(columns) if columns.isdigit() else FILE_WIDTH, FILE_HEIGHT))
        found = shutil.get_terminal_size((WIDTH, HEIGHT))
        return os.terminal_size((found.columns, max(1, found.lines - 1)))  # the cursor's line stays free

    def show(self, lines: Sequence[str]) -> None:
        """Show lines, none longer than the size's columns, in place of those before."""
        if not self.terminal:
            self._write("".join(f"{line}\n" for line in lines))
            return
        text = "".join(f"{line}{CLEAR_LINE}\n" for line in lines)
        self._write(self._begin() + text + CLEAR_BELOW)
        self._shown = len(lines)

    def _begin(self) -> str:
        """Return what moves the cursor to the first line; a terminal of another size has wrapped the lines."""
        size, before = self.size(), self._size
        self._size = size
        if before is not None and size != before:
            return CLEAR_ALL
        return UP.format(self._shown) + "\r" if self._shown else ""

    def _write(self, text: str) -> None:
        self.stream.write(text)  # at once, so that nothing flickers
        self.stream.flush()
