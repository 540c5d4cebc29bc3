"""The place of a training in its run, with the state there: initial weights, or a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from stages.lib.checkpoints.manager import CheckpointManager
    from stages.lib.training.inputs import Run
    from stages.lib.training.state import State


class Position:
    """The place of a training in its run. All ranks call its methods together."""

    def __init__(self, run: Run, state: State, checkpoints: CheckpointManager) -> None:
        self.run, self.state, self.checkpoints = run, state, checkpoints
        self.step = 0
        """Steps taken."""
        self.samples_seen = 0
        """Samples trained on or skipped, those of the initial model included if the run continues its data."""
        self.rollbacks = 0
        self.saved_at: int | None = None
        """Step of the newest checkpoint."""

    def start_at(self, found: tuple[int, dict[str, Any]] | None) -> None:
        """Set place and state to those of a checkpoint, (step, content of its commit.json); None: before step 0."""
        if found is None:
            self._initialize()
        else:
            self._load(*found)

    def _initialize(self) -> None:
        initial = self.run.initial
        self.state.init_weights(initial)
        self.step = self.rollbacks = 0
        self.samples_seen = initial.samples_before if initial else 0

    def _load(self, step: int, commit: dict[str, Any]) -> None:
        tensors = self.state.tensors()
        self.checkpoints.load(step, tensors)
        self.state.load_base(self.run.initial)
        torch.set_rng_state(tensors["rng"])
        self.step = self.saved_at = step
        self.samples_seen, self.rollbacks = commit["samples"], commit.get("rollbacks", 0)

    def skip_samples(self, until: int, rollbacks: int) -> None:
        """Skip the samples before number `until`, after `rollbacks` rollbacks of the run."""
        self.samples_seen, self.rollbacks = until, rollbacks
        self.state.loss_guard.reset_bad_steps()
