"""Requests to stop: signals, a file in the run directory, a deadline. The training then saves, and can be resumed."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from stages.lib import files, log, mpi
from stages.lib.errors import UserError
from stages.lib.run_directory import journal
from stages.lib.training.settings.recipe import WatchdogRecipe

GRACE_FILE = "CARAVAN_GRACE_FILE"
"""Environment variable in which workflow/launch passes the file for the seconds that it waits after a signal."""

STOP_FILE, MARKER = "stop", "stopped.json"
REASONS = ("", "the deadline", "SIGUSR1", "SIGTERM", f"the file {STOP_FILE} in the run directory", "Ctrl-C")
CHECKS = {"reason": journal.is_text, "step": journal.is_count, "time": journal.is_number}
NONE, DEADLINE, USR1, TERM, FILE, INTERRUPT = range(len(REASONS))
FILE_SECONDS = 1.0  # between two checks for the file: a shared file system is slow
SAVE_BYTES_PER_SECOND = 200e6  # until a save was measured
GRACE_FACTOR, GRACE_SECONDS = 1.5, 30.0
"""Margins over the slowest durations so far: later ones may be slower, and processes take seconds to end."""


class StopRequested(Exception):
    """A request to stop that all ranks received; the text is its reason."""


class StopRequests:
    """Requests to stop that this rank received. Ranks receive them at different times: they must agree on `code`."""

    def __init__(
        self,
        directory: Path | None,
        deadline: float | None,
        state_bytes: int,
        stage: str | None = None,
        watchdog: WatchdogRecipe | None = None,
    ) -> None:
        """`directory`: None on ranks that do not check for the file. `deadline`: a time.monotonic(), None for none.

        `state_bytes`: this rank's share of a checkpoint. `stage`: name of the training, which prints what it does on a
        signal; None for a wait in which there is nothing to finish. `watchdog`: its limit for the first step holds
        until a step was measured.
        """
        self.directory = directory
        self.deadline = deadline
        self.stage = stage
        first_step = (watchdog or WatchdogRecipe()).start or WatchdogRecipe().start
        assert first_step is not None
        self._first_step_seconds = 60 * first_step
        self._passed_on = 0
        self.slowest = {"save": state_bytes / SAVE_BYTES_PER_SECOND, "step": 0.0, "evaluation": 0.0}
        self._received = NONE
        self._checked = 0.0

    @contextlib.contextmanager
    def handle_signals(self) -> Iterator[None]:
        """Treat SIGUSR1, SIGTERM and Ctrl-C as requests inside this block."""
        self._pass_on_grace()
        before, codes = {}, {signal.SIGUSR1: USR1, signal.SIGTERM: TERM}
        if "RANK" not in os.environ or mpi.is_started():  # torchrun turns Ctrl-C into SIGTERM
            codes[signal.SIGINT] = INTERRUPT
        try:
            for number, code in codes.items():
                before[number] = signal.signal(number, self._handler(code))
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def record_duration(self, name: str, seconds: float) -> None:
        """Record how long a "save", "step" or "evaluation" took; the longest is kept."""
        self.slowest[name] = max(self.slowest[name], seconds)
        self._pass_on_grace()

    def grace_seconds(self) -> int:
        """Return the seconds after a signal within which the training has saved and ended.

        They are those of the rest of a step, of one more, in which the ranks agree, and of two saves.
        """
        first_step = 0 if self.slowest["step"] else self._first_step_seconds
        return math.ceil(GRACE_SECONDS + first_step + GRACE_FACTOR * (self._needed_seconds() + self.slowest["step"]))

    def _pass_on_grace(self) -> None:
        """Write the grace to the file of workflow/launch, by the first rank of a node, if it changed by a tenth."""
        seconds, path = self.grace_seconds(), os.environ.get(GRACE_FILE)
        if self.stage is None or path is None or os.environ.get("LOCAL_RANK") != "0":
            return
        is_shorter = seconds < self._passed_on  # after a signal launch counts, from when it may have been longer
        if abs(seconds - self._passed_on) > seconds / 10 and not (is_shorter and self._received):
            self._passed_on = seconds
            new = Path(f"{path}.{threading.get_ident()}")  # the thread of a save writes as well
            with contextlib.suppress(OSError):  # a full TMPDIR: launch waits as long as it knows of
                new.write_text(f"{seconds}\n", encoding="ascii")
                new.replace(path)

    def code(self) -> int:
        """Return the index in REASONS of the request, 0 for none."""
        now = time.monotonic()
        if self._received != NONE:
            return self._received
        if self.deadline is not None and now + self._needed_seconds() > self.deadline:
            self._received = DEADLINE
        elif self.directory is not None and now - self._checked > FILE_SECONDS:
            self._checked = now
            if (self.directory / STOP_FILE).exists():
                self._received = FILE
        return self._received

    def _handler(self, code: int) -> Callable[..., None]:
        def handle(*_: Any) -> None:
            if self._received != NONE:
                return
            self._received = code
            if self.stage is None or os.environ.get("RANK", "0") != "0":
                return
            line = f"{self.stage}: {REASONS[code]}: the training finishes its step and saves, which takes at most "
            line = f"{log.CLEAR if os.isatty(2) else ''}{line}{self.grace_seconds()} s\n"
            with contextlib.suppress(OSError):
                os.write(2, line.encode())  # the handler may have interrupted a print: no Python stream is used

        return handle

    def check_time(self, end_of_job: float | None) -> None:
        """Raise UserError if the job has no time for a step and two saves: a restart would not have it either.

        `end_of_job`: a time.monotonic(), None for no limit.
        """
        left = None if end_of_job is None else end_of_job - time.monotonic()
        if left is not None and left < self._needed_seconds():
            raise UserError(
                f"no step fits in before the deadline: {max(left, 0):.0f} s are left after startup, and two saves "
                f"take about {self._needed_seconds():.0f} s; raise the job's time limit (`runtime` in a profile)"
            )

    def _needed_seconds(self) -> float:
        return 2 * self.slowest["save"] + self.slowest["step"] + self.slowest["evaluation"]


def leave_marker(directory: Path, reason: str, step: int) -> None:
    """Write the reason of the stop to stopped.json, and delete the file that requested it."""
    (directory / STOP_FILE).unlink(missing_ok=True)
    files.write_json(directory / MARKER, {"reason": reason, "step": step, "time": time.time()})


def clear_marker(directory: Path) -> None:
    """Delete stopped.json at the start of a training."""
    (directory / MARKER).unlink(missing_ok=True)


def read_marker(directory: Path) -> dict[str, Any] | None:
    """Return the content of stopped.json; None if the training did not stop on request, or the file is damaged."""
    try:
        found = json.loads((directory / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    valid = isinstance(found, dict) and journal.has(found, CHECKS, CHECKS)
    return found if valid else None
