"""Attempts of a training that crash at one place: after the second, no scheduler may start it again by itself.

A scheduler that sends a failed job again cannot tell a node that died from a loss that always ends there. The run
directory can: each attempt writes into events.jsonl which step had been reached before it.
"""

import os
import time

from stages.lib.errors import Preempted, UserError
from stages.lib.run_directory import history, journal

ATTEMPT = "attempt"
"""The first event of each attempt; its `step` is the last that any attempt before had taken."""


def begin(directory, automatic):
    """Write down that an attempt begins.

    Raises UserError instead where it is `automatic`, no person's, and two before it crashed with no new step between.
    """
    path = directory / "events.jsonl"
    events, step = journal.read(path), _reached(directory)
    if automatic:
        _check(directory, events, step)
    journal.append(path, {"time": time.time(), "event": ATTEMPT, "step": step, "job": os.environ.get("SLURM_JOB_ID")})


def _reached(directory):
    steps = (entry["step"] for entry in history.entries(directory, [], history.TAIL) if "validation" not in entry)
    return max(steps, default=0)


def _check(directory, events, step):
    begun = [number for number, event in enumerate(events) if event["event"] == ATTEMPT]
    if len(begun) < 2:
        return
    first, second = events[begun[-2] : begun[-1]], events[begun[-1] :]
    if crash_of(first) and crash_of(second) and step <= second[0]["step"]:
        raise UserError(
            f"the training in {directory} crashed twice and came to no step after {step}, so that it is not started a "
            f"third time: at last it {crash_of(second)}; mend that, and start it anew"
        )


def crash_of(events):
    """How the attempt that left these events crashed; None where it came to its end, or was asked to stop."""
    last = events[-1]
    if last["event"] == "finish":
        return None
    if last["event"] == "hang":
        return f"hung at step {last['step']}"
    if last["event"] != "stop":
        return f"was killed, or its node was lost, at step {last['step']}"
    return None if last["reason"].startswith(f"{Preempted.__name__}:") else f"stopped with {last['reason']}"
