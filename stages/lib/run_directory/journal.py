"""Append-only JSON lines in the run directory, and the progress that a person sees."""

import json
import math
import sys
import time

from stages.lib.errors import UserError
from stages.lib.log import CLEAR, logger


def append(path, entry):
    """Append one JSON line; it reaches the operating system before the call returns.

    Raises UserError where it cannot be written.
    """
    line = json.dumps(entry, allow_nan=False) + "\n"
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(line)
    except OSError as error:
        raise UserError(f"{path} could not be written: {error.strerror}") from None


def mend(path):
    """End a last line that a kill cut, so that the next entry stands on a line of its own."""
    if path.exists() and not path.read_bytes().endswith(b"\n"):
        with open(path, "a", encoding="utf-8") as file:
            file.write("\n")


def read(path):
    """The entries of a file of JSON lines, in order; a last line that a kill cut is left out. [] for no file."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    entries = []
    for line in text.split("\n"):
        try:
            entries.append(json.loads(line))
        except ValueError:
            continue  # cut by a kill, or the empty end
    return entries


class Progress:
    """One line that is rewritten on a terminal; in the log a line now and then."""

    TERMINAL_SECONDS, LOG_SECONDS = 0.2, 30

    def __init__(self, title, total, done):
        self.title, self.total, self.first = title, total, done
        self.started = time.monotonic()
        self.terminal = sys.stderr.isatty()
        self.shown = self.logged = -math.inf

    def show(self, done, facts):
        """Show that `done` of the total are done; `facts` is a short text."""
        now = time.monotonic()
        left = (now - self.started) / max(1, done - self.first) * (self.total - done)
        line = f"{self.title} {done}/{self.total} {facts}, {duration(left)} left"
        if done == self.total or now - self.logged >= self.LOG_SECONDS:
            self.logged = now
            logger.info("%s", line)
        if self.terminal and (done == self.total or now - self.shown >= self.TERMINAL_SECONDS):
            self.shown = now
            self._rewrite(line, "\n" if done == self.total else "")

    def _rewrite(self, line, end):
        try:
            print(f"{CLEAR}{line}", end=end, file=sys.stderr, flush=True)
        except OSError:  # the terminal was closed: nobody looks, and no training shall end for it
            self.terminal = False


def duration(seconds):
    """A number of seconds as a person reads it: 3:07 or 2:03:07."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
