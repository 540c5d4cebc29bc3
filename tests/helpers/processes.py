"""Processes of this machine, as /proc shows them."""

import contextlib
import os
import signal
import time
from pathlib import Path


def is_alive(process):
    """Return True if a process runs; a zombie does not."""
    return _status(process)[0] not in ("", "Z")


def parents():
    """Return {process id: process id of the parent} of all processes."""
    entries = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
    return {entry: int(_status(entry)[1]) for entry in entries if is_alive(entry)}


def with_descendants(processes):
    """Return these processes and all their descendants."""
    above = parents()
    found = {process for process in processes if process in above}
    while more := {process for process, parent in above.items() if parent in found} - found:
        found |= more
    return found


def with_one_of(*variables):
    """Return the processes that were started with one of these strings `NAME=value` in their environment."""
    return {process for process in parents() if not set(variables).isdisjoint(environment_of(process))}


def name_of(process):
    """Return the name of a process; an empty one if it ended."""
    try:
        return Path(f"/proc/{process}/comm").read_text().strip()
    except OSError:
        return ""


def environment_of(process):
    """The environment with which a process was started, as strings `NAME=value`; [] for another user's process."""
    with contextlib.suppress(OSError):
        return os.fsdecode(Path(f"/proc/{process}/environ").read_bytes()).split("\0")
    return []


def kill(processes, number=signal.SIGKILL):
    """Send a signal to processes, unless they ended."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)


def wait_until(ready, seconds, what):
    """Wait for `ready()` to be true and return what it returns. Raises TimeoutError that names `what`."""
    until = time.monotonic() + seconds
    while not (answer := ready()):
        if time.monotonic() > until:
            raise TimeoutError(f"within {seconds} seconds it did not happen that {what}")
        time.sleep(0.05)
    return answer


def _status(process):
    """Return state and parent of a process; an empty state if it does not exist."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return ["", "0"]
