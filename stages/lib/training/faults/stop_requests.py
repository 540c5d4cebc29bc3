"""Requests to stop: signals, a file in the run directory, a deadline. The training saves, and can be started again."""

import contextlib
import json
import os
import signal
import time

from stages.lib import files
from stages.lib.errors import UserError

STOP_FILE, MARKER = "stop", "stopped.json"
REASONS = ("", "the deadline", "SIGUSR1", "SIGTERM", f"the file {STOP_FILE} in the run directory", "Ctrl-C")
NONE, DEADLINE, USR1, TERM, FILE, INTERRUPT = range(len(REASONS))
FILE_SECONDS = 1.0  # a look at a shared file system is not free
BYTES_A_SECOND = 200e6  # a save, until one was measured


class StopRequests:
    """What asks this rank to stop. The ranks hear it at different moments: they must agree on the answer of `code`."""

    def __init__(self, directory, deadline, state_bytes):
        """`deadline`: a time.monotonic(), None for none. `state_bytes`: what this rank's share of a save weighs.

        `directory` is None on the ranks that need not look for the file.
        """
        self.directory = directory
        self.deadline = deadline
        self.slowest = {"save": state_bytes / BYTES_A_SECOND, "step": 0.0, "evaluation": 0.0}
        self._asked = NONE
        self._looked = 0.0

    @contextlib.contextmanager
    def heard(self):
        """A block in which the signals are requests, and end nothing by themselves."""
        before, codes = {}, {signal.SIGUSR1: USR1, signal.SIGTERM: TERM}
        if "RANK" not in os.environ:  # behind the launcher, a Ctrl-C comes as SIGTERM
            codes[signal.SIGINT] = INTERRUPT
        try:
            for number, code in codes.items():
                before[number] = signal.signal(number, self._handler(code))
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def took(self, what, seconds):
        """Remember how long the slowest "save", "step" and "evaluation" took."""
        self.slowest[what] = max(self.slowest[what], seconds)

    def code(self):
        """Which of REASONS there is to stop, by its number; 0 for none."""
        if self._asked == NONE:
            self._asked = self._look()
        return self._asked

    def _handler(self, code):
        def handle(*_):
            self._asked = self._asked or code

        return handle

    def _look(self):
        now = time.monotonic()
        if self.deadline is not None and now + self._needed() > self.deadline:
            return DEADLINE
        if self.directory is not None and now - self._looked > FILE_SECONDS:
            self._looked = now
            if (self.directory / STOP_FILE).exists():
                return FILE
        return NONE

    def check_time(self, end_of_job):
        """Raise UserError where the job leaves no time for a step and two saves: started again, it would not either."""
        left = None if end_of_job is None else end_of_job - time.monotonic()
        if left is not None and left < self._needed():
            raise UserError(
                f"no step fits in before the deadline: {max(left, 0):.0f} s are left after the start, and two saves "
                f"take about {self._needed():.0f} s; raise the job's time limit (`runtime` in a profile)"
            )

    def _needed(self):
        return 2 * self.slowest["save"] + self.slowest["step"] + self.slowest["evaluation"]


def leave_marker(directory, reason, step):
    """Say in the run directory why the training stopped; the request by file is hereby answered."""
    (directory / STOP_FILE).unlink(missing_ok=True)
    files.write_json(directory / MARKER, {"reason": reason, "step": step, "time": time.time()})


def clear_marker(directory):
    """A training that starts is stopped no more."""
    (directory / MARKER).unlink(missing_ok=True)


def read_marker(directory):
    """What `leave_marker` wrote; None where the training was not asked to stop."""
    try:
        return json.loads((directory / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
