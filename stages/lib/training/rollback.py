"""Rollback after too many bad steps in a row: back to a checkpoint before them, and past their samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stages.lib.distributed import collectives
from stages.lib.run_directory.events import read_events
from stages.lib.training import start_point

if TYPE_CHECKING:
    from stages.lib.training.faults.loss_guard import LossGuardRecipe
    from stages.lib.training.step_metrics import StepResult
    from stages.lib.training.trainer import Trainer


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


def roll_back(trainer: Trainer, last: StepResult) -> None:
    """Load the newest checkpoint before the bad steps, and skip all samples since, those of step `last` included."""
    trainer.callbacks.phase("save", trainer.step)
    trainer.checkpointer.wait()
    trainer.step_metrics.discard()
    found = trainer.checkpoints.before(last.step - trainer.recipe.loss_guard.bad_steps, trainer.step)
    left, rollbacks = trainer.step, trainer.rollbacks + 1
    if found is None:
        start_point.initialize(trainer)
    else:
        start_point.load(trainer, *found)
    trainer.checkpoints.forget_after(trainer.step, left)
    trainer.state.loss_guard.reset_bad_steps()
    skipped = [trainer.samples_seen, last.samples[1]]
    trainer.samples_seen, trainer.rollbacks = skipped[1], rollbacks
    trainer.event("rollback", left=left, samples=skipped)


def repeat_rollback(trainer: Trainer) -> None:
    """Skip the samples of a rollback after which no checkpoint was saved, as events.jsonl records it.

    Without this, a resumed training would train on samples that were recorded as skipped, if their steps are good now.
    """
    events = read_events(trainer.directory) if trainer.is_first else []
    made = collectives.broadcast_object([event for event in events if event["event"] == "rollback"])
    if len(made) <= trainer.rollbacks:
        return
    last = made[-1]
    if [last["step"], last["samples"][0]] == [trainer.step, trainer.samples_seen]:
        trainer.samples_seen, trainer.rollbacks = last["samples"][1], len(made)
        trainer.state.loss_guard.reset_bad_steps()
