"""Log lines of a stage: all go to its `--log` file, warnings and errors also to the terminal."""

import logging
import sys
from pathlib import Path

logger = logging.getLogger("caravan")
CLEAR = "\r\x1b[2K"  # clears a terminal's line, so that a log line replaces the progress


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
    logger.addHandler(terminal)
    if path is not None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        file = logging.FileHandler(path, encoding="utf-8")
        file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S"))
        logger.addHandler(file)
