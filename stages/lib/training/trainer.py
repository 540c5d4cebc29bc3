"""The training loop: steps, what happens between them, and the return to an earlier place of the run."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import torch
import torch.distributed as dist

from stages.lib import stage
from stages.lib.checkpoints.manager import AsyncCheckpointer, CheckpointManager
from stages.lib.distributed import collectives
from stages.lib.distributed.collectives import AsyncAllGather
from stages.lib.errors import Preempted
from stages.lib.run_directory.events import read_events
from stages.lib.tokens.loader import Prefetch, share_of
from stages.lib.training import stop_requests
from stages.lib.training.metrics.callback import Callbacks, MetricsWriter
from stages.lib.training.metrics.profiler import Profiler
from stages.lib.training.state import State
from stages.lib.training.step import Stepper
from stages.lib.training.step_metrics import StepMetrics, Throughput, slowest_rank
from stages.lib.training.stop_requests import REASONS, StopRequested, StopRequests
from stages.lib.training.validation import check_finite
from stages.lib.training.watchdog import Watchdog

if TYPE_CHECKING:
    import numpy as np

    from stages.lib.manifest import ModelManifest
    from stages.lib.model.key_table import LoraRecipe
    from stages.lib.model.model_recipe import ModelRecipe
    from stages.lib.run_directory.lease import Lease
    from stages.lib.run_directory.run_identity import RunIdentity
    from stages.lib.training.initial import Initial
    from stages.lib.training.settings.options import Start
    from stages.lib.training.settings.recipe import TrainRecipe
    from stages.lib.training.step_metrics import StepResult
    from stages.lib.training.validation import Validation


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


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run, and the device on which this rank trains it."""

    recipe: TrainRecipe
    model_config: ModelRecipe
    identity: RunIdentity
    device: torch.device
    initial: Initial | None = None
    """The model whose weights the run starts from, None for random weights."""

    lora: LoraRecipe | None = None
    """The adapters that are trained beside the initial model's weights, None to train the weights."""


class Samples(Protocol):
    """The training samples, by their number in the order of the run."""

    document_end: int | None

    def batch(self, samples: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return the arrays of samples that the objective reads, mostly inputs and targets: int32 [n, L] each."""

    def figures(self, samples: int) -> dict[str, Any]:
        """Return the figures of metrics.jsonl on the data after `samples` samples."""

    def described(self) -> dict[str, Any]:
        """Return the record of the data for a milestone's manifest."""


@dataclass(frozen=True, kw_only=True)
class TrainingData:
    """The samples to train on, and the validation split."""

    samples: Samples
    validation: Validation


class Rollback(Exception):
    """Too many bad steps in a row, raised on all ranks; `result` is the last of them."""

    def __init__(self, result: StepResult) -> None:
        super().__init__()
        self.result = result


class RankStatus:
    """Gathers the status of all ranks without waiting: each poll reads what the ranks sent at the poll before."""

    def __init__(
        self, requests: StopRequests, checkpointer: AsyncCheckpointer, step_metrics: StepMetrics, hosts: Sequence[str]
    ) -> None:
        """`hosts`: the host of each rank."""
        self.requests, self.checkpointer, self.step_metrics, self.hosts = requests, checkpointer, step_metrics, hosts
        self._gather = AsyncAllGather(3)

    def poll(self) -> None:
        """Raise StopRequested, or the error of a save, on all ranks together. All ranks call it at the same places."""
        row = [self.requests.code(), self.checkpointer.failed(), self.step_metrics.work_seconds]
        rows = self._gather.wait()
        self._gather.start(row)
        if rows is None:
            return
        if rows[:, 1].any():
            self.checkpointer.wait()
        code = int(rows[:, 0].max())
        if code:
            raise StopRequested(REASONS[code])
        if len(rows) > 1:
            self.step_metrics.add(ranks=slowest_rank(self.hosts, rows[:, 2].tolist()))

    def finish(self) -> None:
        """Wait for the gather in flight."""
        self._gather.wait()


class Trainer:
    """A model, its optimizer and their step, in a run directory. All ranks make one and call its methods together.

    `lease`: None on all ranks except the first. `previous`: the milestone before. `callbacks`: the observers of the
    loop.
    """

    def __init__(
        self,
        run: Run,
        data: TrainingData,
        directory: Path,
        lease: Lease | None,
        start: Start,
        previous: ModelManifest | None = None,
    ) -> None:
        recipe, samples = run.recipe, data.samples
        self.run, self.recipe, self.data, self.directory, self.start = run, recipe, data, directory, start
        self.is_first = dist.get_rank() == 0
        self.state = State(recipe, run.model_config, run.identity.vocab_size, run.device, run.lora)
        self.stepper = Stepper(recipe, self.state, run.device, samples.document_end, run.identity.steps_before)
        self.checkpointer = AsyncCheckpointer(recipe.checkpoint.asynchronous)
        keep = recipe.checkpoint.keep
        self.checkpoints = CheckpointManager(directory, run.identity, keep, self.checkpointer, lease, previous)
        self.position = Position(self.state, self.checkpoints, run.initial)
        hosts = collectives.all_gather_object(socket.gethostname())
        profiler = Profiler(directory, start.profile_steps, start.memory_snapshot, run.device)
        watchdog = Watchdog(recipe.watchdog, directory, lambda message: stage.out_of_time(start.stage, message))
        self.callbacks = Callbacks(watchdog, profiler)  # in this order: writing a profile may take long
        if self.is_first:
            self.callbacks.add(MetricsWriter(directory, len(hosts)))
        self.throughput = Throughput(
            run.model_config,
            run.identity.vocab_size,
            recipe.seq_len,
            dist.get_world_size(),
            run.device,
            (recipe.activation_checkpointing.mode, recipe.activation_checkpointing.ratio),
            None if run.lora is None else self.state.num_trained(),
        )
        self.step_metrics = StepMetrics(self.stepper, self.throughput, samples.figures, self.callbacks)
        self.stop_requests = StopRequests(
            directory if self.is_first else None,
            start.deadline,
            self.state.num_bytes()[0],
            start.stage,
            recipe.watchdog,
        )
        self.status = RankStatus(self.stop_requests, self.checkpointer, self.step_metrics, hosts)

    def train(self, until: int) -> dict[str, Any]:
        """Train up to step `until`, with saves and evaluations; return the scores of the last evaluation.

        The checkpoint of step `until` is then on the disk. Raises Preempted on all ranks if the training was asked to
        stop, after a save.
        """
        try:
            while self.position.step < until:
                try:
                    self._train(until)
                except Rollback as error:
                    self.callbacks.phase("save", self.position.step)
                    self.checkpointer.wait()
                    self.step_metrics.discard()
                    self.event("rollback", **self.position.roll_back(error.result))
            scores = self.evaluate()
        except StopRequested as request:
            with contextlib.suppress(Rollback):  # the next start rolls back
                self.finish_step()
                if self.position.saved_at != self.position.step:
                    self.save()
            self.stop(str(request))
        self.finish()
        return scores

    def _train(self, until: int) -> None:
        position, batch, ranks = self.position, self.recipe.global_batch_size, (dist.get_rank(), dist.get_world_size())
        first = position.samples_seen  # the shares are read ahead: they must not depend on the position
        shares = (share_of(first + step * batch, *ranks, batch) for step in range(until - position.step))
        prefetch = Prefetch(self.data.samples, shares)
        try:
            while position.step < until:
                self.status.poll()
                self.callbacks.before_step(position.step + 1)
                self._take_step(prefetch)
                self.callbacks.after_step(position.step)
                self.callbacks.phase("step", position.step)
                if position.step % self.recipe.checkpoint.every == 0 or position.step == until:
                    self.save()
                if position.step % self.recipe.validation.every == 0 and position.step != until:
                    self.evaluate()
        finally:
            prefetch.close()

    def _take_step(self, prefetch: Prefetch) -> None:
        begun, position = time.monotonic(), self.position
        batch = prefetch.next()
        data_wait = time.monotonic() - begun
        learning_rate = self.stepper.learning_rate(position.step)
        numbers = self.stepper.take(position.step, *batch)
        self.finish_step()  # the step before: its numbers reached the host while this one was launched
        first = position.samples_seen
        position.samples_seen += self.recipe.global_batch_size
        position.step += 1
        seconds = time.monotonic() - begun
        self.stop_requests.record_duration("step", seconds)
        self.step_metrics.put(
            numbers,
            step=position.step,
            samples=[first, position.samples_seen],
            learning_rate=learning_rate,
            seconds=seconds,
            data_wait=data_wait,
        )

    def finish_step(self) -> None:
        """Write the metrics of the last step.

        Raises Rollback, or CollectiveError if none is allowed, after too many bad steps in a row.
        """
        result, guard = self.step_metrics.write(), self.recipe.loss_guard
        if result is None or result.bad_steps < guard.bad_steps:
            return
        if guard.on_repeated == "rollback" and self.position.rollbacks < guard.max_rollbacks:
            raise Rollback(result)
        raise collectives.CollectiveError(
            f"the training stopped after {result.bad_steps} skipped steps in a row, the last with loss {result.loss} "
            f"and gradient norm {result.grad_norm} at step {result.step}; lower optimizer.learning_rate, inspect the "
            "text with tools.inspect, or set loss_guard.on_repeated to rollback"
        )

    def save(self) -> None:
        """Write a checkpoint of this step, and delete old ones beyond `keep`; milestones stay."""
        self.finish_step()
        begun, step = time.monotonic(), self.position.step
        self.callbacks.phase("save", step)

        def done(seconds: float) -> None:
            self.stop_requests.record_duration("save", seconds)
            commit = {"commit": self.checkpoints.commit_digest(step)} if self.is_first else {}
            self.callbacks.event("save", step, {"seconds": round(seconds, 3), **commit})

        progress = {"samples": self.position.samples_seen, "rollbacks": self.position.rollbacks}
        self.checkpoints.save(step, self.state.tensors(), progress, done)
        self.position.saved_at = step
        self.step_metrics.add(checkpoint_stall=time.monotonic() - begun)
        self.callbacks.phase("step", step)

    def evaluate(self) -> dict[str, Any]:
        """Measure the validation loss; return {source: {"loss", ...}} and write it to the metrics."""
        self.finish_step()
        begun, step = time.monotonic(), self.position.step
        self.callbacks.phase("save", step)
        model, objective, size = self.state.model, self.stepper.objective, self.recipe.micro_batch_size

        def before_pass(done: int, total: int) -> None:
            self.status.poll()
            self.callbacks.evaluating(step, done, total)

        model.eval()
        results = self.data.validation.evaluate(objective, model, size, self.run.device, before_pass)
        model.train()
        seconds = time.monotonic() - begun
        self.stop_requests.record_duration("evaluation", seconds)
        check_finite(results, step)
        self.step_metrics.write_validation(step, results, seconds)
        self.callbacks.phase("step", step)
        return results

    def finish(self) -> None:
        """Wait for the save and the gather in flight."""
        self.callbacks.phase("save", self.position.step)
        self.status.finish()
        self.checkpointer.wait()

    def stop(self, reason: str) -> NoReturn:
        """Leave a marker in the run directory, and raise Preempted on all ranks."""
        self.finish()
        saved_at = self.position.saved_at
        if self.is_first:
            stop_requests.leave_marker(self.directory, reason, saved_at or 0)
        dist.barrier()  # otherwise another rank would print the reason before the first rank's last lines
        saved = "before its first checkpoint" if saved_at is None else f"saved at step {saved_at}"
        raise Preempted(f"stopped by {reason}, {saved}; start it again to resume")

    def event(self, event: str, **facts: Any) -> None:
        """Append a line to events.jsonl."""
        self.callbacks.event(event, self.position.step, facts)
