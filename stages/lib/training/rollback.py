"""Rollback after too many bad steps in a row: back to a checkpoint before them, and past their samples."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from stages.lib.distributed import collectives
from stages.lib.run_directory.events import read_events

if TYPE_CHECKING:
    from stages.lib.training.faults.loss_guard import LossGuardRecipe
    from stages.lib.training.position import Position
    from stages.lib.training.step_metrics import StepResult


class Rollback(Exception):
    """Too many bad steps in a row, raised on all ranks; `result` is the last of them."""

    def __init__(self, result: StepResult) -> None:
        super().__init__()
        self.result = result


def check_bad_steps(result: StepResult, recipe: LossGuardRecipe, rollbacks: int) -> None:
    """Raise Rollback, or CollectiveError if none is allowed, after too many bad steps in a row."""
    if result.bad_steps < recipe.bad_steps:
        return
    if recipe.on_repeated == "rollback" and rollbacks < recipe.max_rollbacks:
        raise Rollback(result)
    raise collectives.CollectiveError(
        f"the training stopped after {result.bad_steps} skipped steps in a row, the last with loss {result.loss} and "
        f"gradient norm {result.grad_norm} at step {result.step}; lower optimizer.learning_rate, inspect the text with "
        "tools.inspect, or set loss_guard.on_repeated to rollback"
    )


def roll_back(position: Position, last: StepResult) -> dict[str, Any]:
    """Load the newest checkpoint before the bad steps, and skip all samples since, those of step `last` included.

    Returns the facts of its event.
    """
    left, rollbacks = position.step, position.rollbacks + 1
    bad_steps = position.run.recipe.loss_guard.bad_steps
    position.start_at(position.checkpoints.before(last.step - bad_steps, left))
    position.checkpoints.forget_after(position.step, left)
    skipped = [position.samples_seen, last.samples[1]]
    position.skip_samples(skipped[1], rollbacks)
    return {"left": left, "samples": skipped}


def repeat_rollback(position: Position, directory: Path) -> None:
    """Skip the samples of a rollback after which no checkpoint was saved, as events.jsonl records it.

    Without this, a resumed training would train on samples that were recorded as skipped, if their steps are good now.
    """
    events = read_events(directory) if collectives.is_first_rank() else []
    made = collectives.broadcast_object([event for event in events if event["event"] == "rollback"])
    if len(made) <= position.rollbacks:
        return
    last = made[-1]
    if [last["step"], last["samples"][0]] == [position.step, position.samples_seen]:
        position.skip_samples(last["samples"][1], len(made))
