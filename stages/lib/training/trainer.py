"""The training loop: steps, and what happens between them."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch.distributed as dist

from stages.lib import stage
from stages.lib.checkpoints.async_checkpointer import AsyncCheckpointer
from stages.lib.checkpoints.manager import CheckpointManager
from stages.lib.distributed import collectives
from stages.lib.distributed.collectives import AsyncAllGather
from stages.lib.errors import Preempted
from stages.lib.tokens.loader import Prefetch, share_of
from stages.lib.training import rollback
from stages.lib.training.faults import stop_requests
from stages.lib.training.faults.stop_requests import REASONS, StopRequested, StopRequests
from stages.lib.training.faults.watchdog import Watchdog
from stages.lib.training.metrics.callback import Callbacks
from stages.lib.training.metrics.profiler import Profiler
from stages.lib.training.metrics.writer import MetricsWriter
from stages.lib.training.position import Position
from stages.lib.training.state import State
from stages.lib.training.step import Stepper
from stages.lib.training.step_metrics import StepMetrics
from stages.lib.training.validation import check_finite

if TYPE_CHECKING:
    from stages.lib.manifest import Manifest
    from stages.lib.run_directory.lease import Lease
    from stages.lib.training.inputs import Run, TrainingData
    from stages.lib.training.settings.options import Start
    from stages.lib.training.step_metrics import StepResult


class RankStatus:
    """Gathers the status of all ranks without waiting: each poll reads what the ranks sent at the poll before."""

    def __init__(self, requests: StopRequests, checkpointer: AsyncCheckpointer, step_metrics: StepMetrics) -> None:
        self.requests, self.checkpointer, self.step_metrics = requests, checkpointer, step_metrics
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
            self.step_metrics.add_ranks(rows[:, 2].tolist())

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
        previous: Manifest | None = None,
    ) -> None:
        recipe, samples = run.recipe, data.samples
        self.run, self.recipe, self.data, self.directory, self.start = run, recipe, data, directory, start
        self.is_first = dist.get_rank() == 0
        self.state = State(recipe, run.model_config, run.identity.vocab_size, run.device, run.lora)
        self.stepper = Stepper(recipe, self.state, run.device, samples.document_end, run.identity.steps_before)
        self.checkpointer = AsyncCheckpointer(recipe.checkpoint.asynchronous)
        keep = recipe.checkpoint.keep
        self.checkpoints = CheckpointManager(directory, run.identity, keep, self.checkpointer, lease, previous)
        self.position = Position(run, self.state, self.checkpoints)
        hosts = collectives.all_gather_object(socket.gethostname())
        profiler = Profiler(directory, start.profile_steps, start.memory_snapshot, run.device)
        watchdog = Watchdog(recipe.watchdog, directory, lambda message: stage.out_of_time(start.stage, message))
        self.callbacks = Callbacks(watchdog, profiler)  # in this order: writing a profile may take long
        if self.is_first:
            self.callbacks.add(MetricsWriter(directory, len(hosts)))
        self.step_metrics = StepMetrics(run, self.state, self.stepper, samples, self.callbacks, hosts)
        watched = directory if self.is_first else None
        state_bytes = self.state.num_bytes()[0]
        self.stop_requests = StopRequests(watched, start.deadline, state_bytes, start.stage, recipe.watchdog)
        self.status = RankStatus(self.stop_requests, self.checkpointer, self.step_metrics)

    def train(self, until: int) -> dict[str, Any]:
        """Train up to step `until`, with saves and evaluations; return the scores of the last evaluation.

        The checkpoint of step `until` is then on the disk. Raises Preempted on all ranks if the training was asked to
        stop, after a save.
        """
        try:
            while self.position.step < until:
                try:
                    self._train(until)
                except rollback.Rollback as error:
                    self._roll_back(error.result)
            scores = self.evaluate()
        except StopRequested as request:
            with contextlib.suppress(rollback.Rollback):  # the next start rolls back
                self.finish_step()
                if self.position.saved_at != self.position.step:
                    self.save()
            self.stop(str(request))
        self.finish()
        return scores

    def _train(self, until: int) -> None:
        position = self.position
        prefetch = Prefetch(self.data.samples, self._shares(position.samples_seen, until - position.step))
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

    def _shares(self, first: int, steps: int) -> Iterator[Any]:
        """Yield this rank's sample numbers of each of the next steps. It runs ahead, and must not read the position."""
        batch = self.recipe.global_batch_size
        for number in range(steps):
            yield share_of(first + number * batch, dist.get_rank(), dist.get_world_size(), batch)

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
        """Write the metrics of the last step. Raises Rollback or CollectiveError after too many bad steps."""
        result = self.step_metrics.write()
        if result is not None:
            rollback.check_bad_steps(result, self.recipe.loss_guard, self.position.rollbacks)

    def _roll_back(self, last: StepResult) -> None:
        self.callbacks.phase("save", self.position.step)
        self.checkpointer.wait()
        self.step_metrics.discard()
        self.event("rollback", **rollback.roll_back(self.position, last))

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

    def close(self) -> None:
        """Close the callbacks."""
        self.callbacks.close()
