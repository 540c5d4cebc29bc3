"""The command-line options of every training stage, and the settings of one start that they give."""

from __future__ import annotations

import argparse
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

from stages.lib.errors import UserError
from stages.lib.run_directory.lease import job_restarts

DEADLINE = "CARAVAN_DEADLINE"
"""Environment variable in which workflow/launch passes the end of its job, in seconds since 1970."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """Settings of one start of a training that change no result and are in no recipe."""

    stage: str
    """Name of the stage."""

    deadline: float | None
    """The time.monotonic() before which the training must end."""

    end_of_job: float | None
    """The time.monotonic() at which the job around it ends; the scheduler would start it again and again."""

    automatic: bool
    """Started by a scheduler after a failure, not by a person."""

    profile_steps: tuple[int, int] | None
    """First and last step to profile."""

    memory_snapshot: bool
    """Record the GPU's allocations in these steps."""

    @classmethod
    def from_args(cls, arguments: argparse.Namespace) -> Start:
        """Return the start that the options describe. Raises UserError."""
        if arguments.minutes is not None and not 0 < arguments.minutes < float("inf"):
            raise UserError(f"--minutes must be greater than 0, got {arguments.minutes}")
        if arguments.attempt < 1:
            raise UserError(f"--attempt must be at least 1, got {arguments.attempt}")
        by_option = None if arguments.minutes is None else arguments.begun + 60 * arguments.minutes
        by_job = time.monotonic() + float(os.environ[DEADLINE]) - time.time() if DEADLINE in os.environ else None
        return cls(
            stage=arguments.stage_name,
            deadline=min((end for end in (by_option, by_job) if end is not None), default=None),
            end_of_job=by_job,
            automatic=arguments.attempt > 1 or job_restarts() > 0,
            profile_steps=None if arguments.profile_steps is None else parse_steps(arguments.profile_steps),
            memory_snapshot=arguments.memory_snapshot,
        )


def parse_steps(text: str) -> tuple[int, int]:
    """Parse `A:B`, the first and the last step by their number in metrics.jsonl. Raises UserError."""
    match = re.fullmatch(r"(\d+):(\d+)", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise UserError(f"--profile-steps must be A:B, two steps with 1 <= A <= B, got {text!r}")
    return int(match[1]), int(match[2])


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options to a stage's parser; the last four make a `Start`."""
    parser.add_argument(
        "--until", type=int, required=True, help="step of the milestone to reach, or its epoch if the recipe has epochs"
    )
    parser.add_argument("--previous", type=Path, help="manifest of the milestone before")
    parser.add_argument("--train-dir", type=Path, required=True, help="parent of the run directories")
    parser.add_argument("--output", type=Path, required=True, help="manifest of the milestone")
    parser.add_argument(
        "--operation", default="{}", metavar="JSON|FILE", help="more recipe keys, which change no result"
    )
    parser.add_argument("--minutes", type=float, help="save and exit with code 75 before this many minutes have passed")
    parser.add_argument("--profile-steps", metavar="A:B", help="profile steps A to B into the run directory")
    parser.add_argument(
        "--memory-snapshot", action="store_true", help="with --profile-steps, record the GPU's allocations as well"
    )
    parser.add_argument(
        "--attempt",
        type=int,
        default=1,
        help="number of the scheduler's attempt; from 2 on, a training that crashed twice at one step is refused",
    )
    parser.set_defaults(begun=time.monotonic())
