"""Log lines of a stage: all go to its `--log` file, warnings and errors also to the terminal."""

import contextlib
import logging
import sys
import threading
from pathlib import Path

from stages.lib.errors import UserError

logger = logging.getLogger("caravan")
CLEAR = "\r\x1b[2K"  # clears a terminal's line, so that a log line replaces the progress


class _File(logging.FileHandler):
    """The file of `--log`. If a line cannot be written, the stage ends as if any other file of it could not."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Take the handler away, and raise UserError in the main thread; other threads only warn."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
            return
        logger.removeHandler(self)  # first: the reason is logged too
        with contextlib.suppress(OSError):
            self.close()
        message = f"--log {self.baseFilename} cannot be written: {error.strerror}"
        if threading.current_thread() is threading.main_thread():
            raise UserError(message) from None
        logger.warning("%s", message)


def to(path: Path | str | None) -> None:
    """Send log lines to a file, and warnings also to stderr; send all to stderr if `path` is None."""
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()
    logger.setLevel(logging.INFO)
    logger.propagate = False
    terminal = logging.StreamHandler(sys.stderr)
    terminal.setFormatter(logging.Formatter(f"{CLEAR if sys.stderr.isatty() else ''}%(message)s"))
    terminal.setLevel(logging.INFO if path is None else logging.WARNING)
    if path is not None:
        terminal.addFilter(logging.Filter(logger.name))  # not what `take_over` adds
    logger.addHandler(terminal)
    if path is not None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        file = _File(path, encoding="utf-8", errors="backslashreplace")
        file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S"))
        logger.addHandler(file)


def take_over(library: str) -> None:
    """Send the log lines of a library to where ours go at that time: to the file of `--log` alone, if there is one."""
    other = logging.getLogger(library)
    other.handlers = []
    other.parent, other.propagate = logger, True
