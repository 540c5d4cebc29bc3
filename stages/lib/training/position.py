"""The place of a training in its run, with the state there, and the return to an earlier one.

After too many bad steps in a row a training goes back to a checkpoint before them, and past their samples.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from stages.lib.distributed import collectives
from stages.lib.run_directory.events import read_events

if TYPE_CHECKING:
    from stages.lib.checkpoints.manager import CheckpointManager
    from stages.lib.training.initial import Initial
    from stages.lib.training.state import State
    from stages.lib.training.step_metrics import StepResult


class Position:
    """The place of a training in its run: initial weights, or a checkpoint. All ranks call its methods together."""

    def __init__(self, state: State, checkpoints: CheckpointManager, initial: Initial | None) -> None:
        self.state, self.checkpoints, self.initial = state, checkpoints, initial
        self.step = 0
        """Steps taken."""
        self.samples_seen = 0
        """Samples trained on or skipped, those of the initial model included if the run continues its data."""
        self.rollbacks = 0
        self.saved_at: int | None = None
        """Step of the newest checkpoint."""

    def start_at(self, checkpoint: tuple[int, dict[str, Any]] | None) -> None:
        """Set place and state to those of a checkpoint, (step, content of its commit.json); None: before step 0."""
        if checkpoint is None:
            self.state.init_weights(self.initial)
            self.step = self.rollbacks = 0
            self.samples_seen = self.initial.samples_before if self.initial else 0
            return
        step, commit = checkpoint
        tensors = self.state.tensors()
        self.checkpoints.load(step, tensors)
        self.state.load_base(self.initial)
        torch.set_rng_state(tensors["rng"])
        self.step = self.saved_at = step
        self.samples_seen, self.rollbacks = commit["samples"], commit.get("rollbacks", 0)

    def roll_back(self, last: StepResult) -> dict[str, Any]:
        """Load the newest checkpoint before the bad steps, and skip all samples since, those of step `last` included.

        Returns the facts of its event.
        """
        left, rollbacks = self.step, self.rollbacks + 1
        self.start_at(self.checkpoints.before(last.step - self.state.recipe.loss_guard.bad_steps, left))
        self.checkpoints.forget_after(self.step, left)
        skipped = [self.samples_seen, last.samples[1]]
        self._skip_samples(skipped[1], rollbacks)
        return {"left": left, "samples": skipped}

    def repeat_rollback(self, directory: Path) -> None:
        """Skip the samples of a rollback after which no checkpoint was saved, as events.jsonl records it.

        Without this, a resumed training would train on samples that were recorded as skipped, if their steps are good
        now.
        """
        events = read_events(directory) if collectives.is_first_rank() else []
        rollbacks = collectives.broadcast_object([event for event in events if event["event"] == "rollback"])
        if len(rollbacks) > self.rollbacks:
            step, (first, end) = rollbacks[-1]["step"], rollbacks[-1]["samples"]
            if (step, first) == (self.step, self.samples_seen):
                self._skip_samples(end, len(rollbacks))

    def _skip_samples(self, until: int, rollbacks: int) -> None:
        self.samples_seen, self.rollbacks = until, rollbacks
        self.state.loss_guard.reset_bad_steps()
