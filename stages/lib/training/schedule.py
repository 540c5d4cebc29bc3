"""Learning-rate schedules: pure functions of the step."""

import math
from dataclasses import dataclass

from stages.lib.errors import UserError
from stages.lib.recipe import identity

KINDS = ("cosine", "wsd", "linear", "constant")


@dataclass(frozen=True, kw_only=True)
class ScheduleRecipe:
    """How the learning rate moves over the steps of a run."""

    kind: str = identity("cosine", choices=KINDS)
    """What follows the warm-up. cosine, linear: down to `min_lr_ratio` over all remaining steps. wsd (warmup, stable,
    decay): the peak, then down over the last `decay_steps`. constant: the peak to the end (`min_lr_ratio: 1`). To
    anneal a model that was trained before, use linear with `warmup_steps: 0`."""

    warmup_steps: int = identity(100, minimum=0)
    """Steps over which the learning rate rises from 0 to its peak."""

    warmup: str = identity("linear", choices=("linear", "parabolic"))
    """How it rises over the share x of the warm-up: linear is x, parabolic 1 - (1 - x)^2, which is steep at first."""

    min_lr_ratio: float = identity(0.1, minimum=0, maximum=1)
    """What the learning rate ends at, as a fraction of the peak; 1 for constant."""

    decay_steps: int | None = identity(None, minimum=1)
    """The last steps of a run, in which the learning rate falls; for wsd alone, which must have it."""

    decay: str = identity("linear", choices=("linear", "sqrt"))
    """How it falls over the share x of `decay_steps`, for wsd alone: linear is 1 - x, sqrt 1 - sqrt(x)."""

    def check(self, where):
        """Raise UserError where a key says what the kind of schedule cannot do."""
        if self.kind == "constant" and self.min_lr_ratio != 1:
            raise UserError(
                f"{where}.min_lr_ratio must be 1 for the kind constant, which stays at the peak, "
                f"got {self.min_lr_ratio:g}"
            )
        if self.warmup != "linear" and not self.warmup_steps:
            raise UserError(f"{where}.warmup must be left out where warmup_steps is 0, got {self.warmup}")
        if self.kind == "wsd" and self.decay_steps is None:
            raise UserError(f"{where}.decay_steps is missing: the kind wsd must know over how many steps it falls")
        if self.kind != "wsd" and self.decay_steps is not None:
            raise UserError(
                f"{where}.decay_steps must be left out for the kind {self.kind}, which falls by itself or never, "
                f"got {self.decay_steps}"
            )
        if self.kind != "wsd" and self.decay != "linear":
            raise UserError(f"{where}.decay must be left out for the kind {self.kind}, got {self.decay}")

    def check_steps(self, steps, where):
        """Raise UserError where a run is too short for its warm-up and its decay."""
        if self.kind == "wsd" and self.warmup_steps + self.decay_steps > steps:
            raise UserError(
                f"{where}.decay_steps must be at most steps - warmup_steps ({steps} - {self.warmup_steps}), "
                f"got {self.decay_steps}"
            )


def learning_rate(recipe, peak, step, steps):
    """The learning rate of step `step` (0-based) of `steps`: the warm-up, then what the recipe's kind says.

    The first step has peak / (warmup_steps + 1) of a linear warm-up, so that no step is lost; the step after the last
    would have the floor. Sources: cosine arXiv 1608.03983; wsd arXiv 2404.06395, its sqrt arXiv 2405.18392; parabolic
    warm-up and annealing as in fms-fsdp's main_training_llama.py.
    """
    if step < recipe.warmup_steps:
        return _warming(recipe, peak, step)
    falling = _falling(recipe, step, steps)
    return peak * (recipe.min_lr_ratio + (1 - recipe.min_lr_ratio) * falling)


def _warming(recipe, peak, step):
    if recipe.warmup == "linear":
        return peak * (step + 1) / (recipe.warmup_steps + 1)
    left = 1 - (step + 1) / (recipe.warmup_steps + 1)
    return peak * (1 - left * left)


def _falling(recipe, step, steps):
    """Which part of the way from the floor to the peak is left, from 1 down to 0."""
    begin = recipe.warmup_steps
    if recipe.kind == "wsd":
        begin = max(begin, steps - recipe.decay_steps)
    progress = min(1.0, max(0, step - begin) / max(1, steps - begin))
    if recipe.kind == "constant":
        return 1.0
    if recipe.kind == "cosine":
        return 0.5 * (1 + math.cos(math.pi * progress))
    return 1 - (math.sqrt(progress) if recipe.decay == "sqrt" else progress)
