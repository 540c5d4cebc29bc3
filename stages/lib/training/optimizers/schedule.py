"""Learning-rate schedules: pure functions of the step."""

import math
from dataclasses import dataclass

from stages.lib.errors import UserError
from stages.lib.recipe import identity

KINDS = ("cosine", "wsd", "linear", "constant")


@dataclass(frozen=True, kw_only=True)
class ScheduleRecipe:
    """The learning-rate schedule over the steps of a run."""

    kind: str = identity("cosine", choices=KINDS)
    """The schedule after the warm-up. cosine, linear: decay to `min_lr_ratio` over all remaining steps. wsd (warmup,
    stable, decay): the peak, then decay over the last `decay_steps`. constant: the peak to the end (`min_lr_ratio: 1`).
    To anneal a trained model, use linear with `warmup_steps: 0`."""

    warmup_steps: int = identity(100, minimum=0)
    """Steps over which the learning rate rises from 0 to its peak."""

    warmup: str = identity("linear", choices=("linear", "parabolic"))
    """Shape of the warm-up over its share x: linear is x, parabolic 1 - (1 - x)^2, which is steep at first."""

    min_lr_ratio: float = identity(0.1, minimum=0, maximum=1)
    """Final learning rate as a fraction of the peak; 1 for constant."""

    decay_steps: int | None = identity(None, minimum=1)
    """Number of the last steps, in which the learning rate decays; required for wsd, and for wsd only."""

    decay: str = identity("linear", choices=("linear", "sqrt"))
    """Shape of the decay over the share x of `decay_steps`, for wsd only: linear is 1 - x, sqrt is 1 - sqrt(x)."""

    def check(self, where: str) -> None:
        """Raise UserError if a key does not fit the kind of schedule."""
        if self.kind == "constant" and self.min_lr_ratio != 1:
            raise UserError(
                f"{where}.min_lr_ratio must be 1 for kind constant, which stays at the peak, got {self.min_lr_ratio:g}"
            )
        if self.warmup != "linear" and not self.warmup_steps:
            raise UserError(f"{where}.warmup must be left out if warmup_steps is 0, got {self.warmup}")
        if self.kind == "wsd" and self.decay_steps is None:
            raise UserError(f"{where}.decay_steps is missing: kind wsd needs the number of steps over which it decays")
        if self.kind != "wsd" and self.decay_steps is not None:
            raise UserError(
                f"{where}.decay_steps must be left out for kind {self.kind}, got {self.decay_steps}; it is for wsd only"
            )
        if self.kind != "wsd" and self.decay != "linear":
            raise UserError(
                f"{where}.decay must be left out for kind {self.kind}, got {self.decay}; it is for wsd only"
            )

    def check_steps(self, steps: int, where: str) -> None:
        """Raise UserError if a run is too short for its warm-up and its decay."""
        if self.decay_steps is not None and self.warmup_steps + self.decay_steps > steps:
            raise UserError(
                f"{where}.decay_steps must be at most steps - warmup_steps ({steps} - {self.warmup_steps}), "
                f"got {self.decay_steps}"
            )


def remarks(recipe: ScheduleRecipe, steps: int, where: str) -> list[str]:
    """Return a sentence if the warm-up does not end before the run; such a run is valid, and rarely meant."""
    if recipe.warmup_steps < steps:
        return []
    return [
        f"{where}.warmup_steps ({recipe.warmup_steps}) should be less than steps ({steps}): the learning rate does not "
        "reach its peak"
    ]


def jump(
    recipe: ScheduleRecipe, peak: float, step: int, steps: tuple[int, int], where: str, before: int = 0
) -> str | None:
    """Return a sentence if the rate after `step` steps jumps since `where`.steps changed from `steps[0]` to `steps[1]`.

    `before`: steps of the schedule that were taken before the run.
    """
    then, now = (learning_rate(recipe, peak, before + step - 1, before + total) for total in steps)
    if math.isclose(then, now, rel_tol=1e-3):
        return None
    return (
        f"{where}.steps was {steps[0]} when step {step} was trained and is {steps[1]}, which stretches the schedule: "
        f"the learning rate jumps from {then:.3g} to {now:.3g}; to avoid it, leave steps and continue in a run with "
        "`initial` at a milestone of this one (optimizer keep, schedule reset, data continue), or train runs that may "
        "grow with schedule.kind constant"
    )


def learning_rate(recipe: ScheduleRecipe, peak: float, step: int, steps: int) -> float:
    """Return the learning rate of step `step` (0-based) of `steps`: the warm-up, then the recipe's kind of schedule.

    The first step of a linear warm-up has peak / (warmup_steps + 1), so that no step has rate 0; the step after the
    last would have the final rate. Sources: cosine arXiv 1608.03983; wsd arXiv 2404.06395, its sqrt arXiv 2405.18392;
    parabolic warm-up and annealing as in fms-fsdp's main_training_llama.py.
    """
    if step < recipe.warmup_steps:
        if recipe.warmup == "linear":
            return peak * (step + 1) / (recipe.warmup_steps + 1)
        left = 1 - (step + 1) / (recipe.warmup_steps + 1)
        return peak * (1 - left * left)
    factor = _decay_factor(recipe, step, steps)
    return peak * (recipe.min_lr_ratio + (1 - recipe.min_lr_ratio) * factor)


def _decay_factor(recipe: ScheduleRecipe, step: int, steps: int) -> float:
    """Return the height above the final rate, from 1 at the peak to 0 at the end."""
    begin = recipe.warmup_steps
    if recipe.decay_steps is not None:  # wsd
        begin = max(begin, steps - recipe.decay_steps)
    progress = min(1.0, max(0, step - begin) / max(1, steps - begin))
    if recipe.kind == "constant":
        return 1.0
    if recipe.kind == "cosine":
        return 0.5 * (1 + math.cos(math.pi * progress))
    return 1 - (math.sqrt(progress) if recipe.decay == "sqrt" else progress)
