"""Where a stage's log lines go: to its `--log` file, and to the terminal what a person must see."""

import logging
import sys
from pathlib import Path

logger = logging.getLogger("caravan")
CLEAR = "\r\x1b[2K"  # of a terminal's line: a log line takes the place of the progress


def to(path):
    """Send log lines to a file (warnings to stderr as well); to stderr where `path` is None."""
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
