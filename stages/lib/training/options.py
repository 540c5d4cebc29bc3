"""The options of the command line that every training stage has, and how one start of it runs."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

from stages.lib.errors import UserError
from stages.lib.training.metrics import profiler

DEADLINE = "CARAVAN_DEADLINE"
"""The environment variable in which workflow/launch says when the job around it ends, in seconds since 1970."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """A start, by what changes no result and stands in no recipe.

    `stage` is the name of the stage, `deadline` the time.monotonic() at which it must have ended, None for none;
    `end_of_job` is that of the job around it, which a scheduler would start again and again. `automatic`: whether no
    person started it, but a scheduler after a failure.
    """

    stage: str
    deadline: float | None
    end_of_job: float | None
    automatic: bool
    profile_steps: tuple | None
    memory_snapshot: bool


def add_options(parser):
    """Add the options to a stage's parser; the last four make a `Start`."""
    parser.add_argument("--until", type=int, required=True, help="step of the milestone to reach")
    parser.add_argument("--previous", type=Path, help="manifest of the milestone before")
    parser.add_argument("--train-dir", type=Path, required=True, help="where run directories lie")
    parser.add_argument("--output", type=Path, required=True, help="manifest of the milestone")
    parser.add_argument(
        "--operation", default="{}", metavar="JSON|FILE", help="more recipe keys, that change no result"
    )
    parser.add_argument("--minutes", type=float, help="save, and end with exit code 75, before so many have gone by")
    parser.add_argument("--profile-steps", metavar="A:B", help="profile steps A to B into the run directory")
    parser.add_argument(
        "--memory-snapshot", action="store_true", help="with --profile-steps, record the GPU's allocations as well"
    )
    parser.add_argument(
        "--attempt",
        type=int,
        default=1,
        help="which attempt of a scheduler this is; from the second on, one that crashed twice at a step is refused",
    )
    parser.set_defaults(begun=time.monotonic())


def of(arguments):
    """The start that the options describe. Raises UserError."""
    if arguments.minutes is not None and not 0 < arguments.minutes < float("inf"):
        raise UserError(f"--minutes must be greater than 0, got {arguments.minutes}")
    if arguments.attempt < 1:
        raise UserError(f"--attempt must be at least 1, got {arguments.attempt}")
    by_option = None if arguments.minutes is None else arguments.begun + 60 * arguments.minutes
    by_job = time.monotonic() + float(os.environ[DEADLINE]) - time.time() if DEADLINE in os.environ else None
    steps = None if arguments.profile_steps is None else profiler.parse_steps(arguments.profile_steps)
    return Start(
        stage=arguments.stage_name,
        deadline=min((end for end in (by_option, by_job) if end is not None), default=None),
        end_of_job=by_job,
        automatic=arguments.attempt > 1 or os.environ.get("SLURM_RESTART_COUNT", "0") != "0",
        profile_steps=steps,
        memory_snapshot=arguments.memory_snapshot,
    )
