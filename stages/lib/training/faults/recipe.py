"""The recipes of the loss guard and the watchdog. Imports no torch."""

from dataclasses import dataclass

from stages.lib.recipe import identity, operation


@dataclass(frozen=True, kw_only=True)
class LossGuardRecipe:
    """Detection of bad steps, and the reaction to many of them. A bad step changes no weights; its batch is skipped."""

    spike: float | None = identity(None, above=0)
    """A loss is a spike if it is more than this number of standard deviations above the mean of the last `window` good
    losses; 6 is usual. Default: only a loss or gradient that is not finite is bad."""

    window: int = identity(128, minimum=8)
    """Number of losses for the mean and the deviation; no loss is a spike before half as many are known."""

    bad_steps: int = identity(10, minimum=1)
    """Number of consecutive bad steps after which `on_repeated` applies."""

    on_repeated: str = identity("stop", choices=("stop", "rollback"))
    """stop: end with an error. rollback: load the newest checkpoint before the bad steps, and skip all samples since
    then."""

    max_rollbacks: int = identity(3, minimum=1)
    """Number of rollbacks of a run; after them it stops."""


@dataclass(frozen=True, kw_only=True)
class WatchdogRecipe:
    """Minutes without progress after which a training ends, to be started again; null: never."""

    start: float | None = operation(30.0, above=0)
    """Minutes from the start of training to the end of its first step, loading and compiling included."""

    step: float | None = operation(10.0, above=0)
    """Maximum minutes per step."""

    save: float | None = operation(30.0, above=0)
    """Maximum minutes per save, and per forward pass of an evaluation."""
