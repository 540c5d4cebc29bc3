"""Learning-rate schedules: pure functions of the step."""

import math
from dataclasses import dataclass

from stages.lib.recipe import identity


@dataclass(frozen=True, kw_only=True)
class ScheduleRecipe:
    """How the learning rate moves over the steps of a run."""

    warmup_steps: int = identity(100, minimum=0)
    """Steps over which the learning rate rises linearly from 0 to its peak."""

    floor: float = identity(0.1, minimum=0, maximum=1)
    """What the cosine ends at, as a fraction of the peak."""


def learning_rate(recipe, peak, step, steps):
    """The learning rate of step `step` (0-based) of `steps`: linear warm-up, then a cosine down to `floor * peak`.

    The first step has peak / (warmup_steps + 1), so that no step is lost; the step after the last would have the floor.
    """
    if step < recipe.warmup_steps:
        return peak * (step + 1) / (recipe.warmup_steps + 1)
    progress = min(1.0, (step - recipe.warmup_steps) / max(1, steps - recipe.warmup_steps))
    return peak * (recipe.floor + (1 - recipe.floor) * 0.5 * (1 + math.cos(math.pi * progress)))
