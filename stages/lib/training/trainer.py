"""The training loop: steps, and what happens between them."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from stages.lib import stage
from stages.lib.checkpoints.async_checkpointer import AsyncCheckpointer
from stages.lib.checkpoints.manager import CheckpointManager
from stages.lib.distributed import collectives
from stages.lib.model import flops
from stages.lib.tokens.loader import Prefetch, share_of
from stages.lib.training import rollback, start_point, stop
from stages.lib.training.callbacks.callback import Callbacks
from stages.lib.training.callbacks.progress import ProgressLine
from stages.lib.training.faults import stop_requests
from stages.lib.training.faults.stop_requests import StopRequests
from stages.lib.training.faults.watchdog import Watchdog
from stages.lib.training.metrics.profiler import Profiler
from stages.lib.training.metrics.trackers import Trackers
from stages.lib.training.metrics.writer import MetricsWriter
from stages.lib.training.rank_status import RankStatus
from stages.lib.training.state import State
from stages.lib.training.step import Stepper
from stages.lib.training.step_metrics import StepMetrics
from stages.lib.training.validation import check_finite

if TYPE_CHECKING:
    from stages.lib.run_directory.lease import Lease
    from stages.lib.training.inputs import Run, TrainingData
    from stages.lib.training.options import Start


class Trainer:
    """A model, its optimizer and their step, in a run directory. All ranks make one and call its methods together.

    `lease`: None on all ranks except the first. `callbacks`: the observers of the loop.
    """

    def __init__(self, run: Run, data: TrainingData, directory: Path, lease: Lease | None, start: Start) -> None:
        recipe, samples = run.recipe, data.samples
        self.run, self.recipe, self.data, self.directory, self.start = run, recipe, data, directory, start
        self.is_first = dist.get_rank() == 0
        self.step = self.samples_seen = self.rollbacks = 0
        self.saved_at: int | None = None
        """Step of the newest checkpoint."""
        self.state = State(recipe, run.model_config, run.identity.vocab_size, run.device, run.lora)
        self.stepper = Stepper(recipe, self.state, run.device, samples.document_end, run.identity.steps_before)
        self.checkpointer = AsyncCheckpointer(recipe.checkpoint.asynchronous)
        keep = recipe.checkpoint.keep
        self.checkpoints = CheckpointManager(directory, run.identity, keep, self.checkpointer, lease)
        hosts = collectives.all_gather_object(socket.gethostname())
        profiler = Profiler(directory, start.profile_steps, start.memory_snapshot, run.device)
        watchdog = Watchdog(recipe.watchdog, directory, lambda message: stage.out_of_time(start.stage, message))
        self.callbacks = Callbacks(watchdog, profiler)  # in this order: writing a profile may take long
        if self.is_first:
            self.callbacks.add(MetricsWriter(directory, len(hosts)))
        self.step_metrics = StepMetrics(run, self.state, self.stepper, samples, self.callbacks, hosts)
        watched = directory if self.is_first else None
        self.stop_requests = StopRequests(watched, start.deadline, self.state.num_bytes()[0])
        self.status = RankStatus(self.stop_requests, self.checkpointer, self.step_metrics)

    def resume(self, until: int) -> None:
        """Load the newest complete checkpoint at or below step `until`, or initial weights if there is none."""
        profiled = self.start.profile_steps
        if profiled is not None and profiled[0] > until:
            raise collectives.CollectiveError(
                f"--profile-steps must begin at or before step {until}, where this training ends, got {profiled[0]}"
            )
        if self.is_first:
            stop_requests.clear_marker(self.directory)
        self.checkpoints.clear_leftovers()
        found = self.checkpoints.newest(until)
        try:
            self.stepper.objective.prepare(self)
        except stop.StopRequested as request:
            stop.stop_now(self, str(request))
        if found is None:
            start_point.initialize(self)
        else:
            start_point.load(self, *found)
        if self.step < until:
            rollback.repeat_rollback(self)
        start_point.check_room(self)
        self.checkpointer.prepare(self.state.tensors())
        facts = {"steps": self.recipe.steps, "parameters": self.state.num_parameters()}
        if self.run.model_config.router is not None:
            facts["active_parameters"] = flops.active_count(self.run.model_config, self.run.identity.vocab_size)
        facts |= {"float8": True} if self.recipe.float8 else {}
        facts |= {} if self.run.lora is None else {"trained_parameters": self.state.num_trained()}
        throughput = self.step_metrics.throughput.facts()
        self.event("start" if found is None else "resume", **facts, **throughput)
        with collectives.raise_on_all_ranks():
            if self.is_first:
                shown = facts | self.run.identity.to_json() | throughput
                self.callbacks.add(Trackers(self.recipe.trackers, self.directory, self._run_name(), shown, self.step))
                self.callbacks.add(ProgressLine(until, self.step_metrics.tokens_per_step))

    def _run_name(self) -> str:
        return f"{self.directory.parents[1].name}-{self.directory.name}"

    def train(self, until: int) -> dict[str, Any]:
        """Train up to step `until`, with saves and evaluations; return the scores of the last evaluation.

        The checkpoint of step `until` is then on the disk. Raises Preempted on all ranks if the training was asked to
        stop, after a save.
        """
        try:
            while self.step < until:
                try:
                    self._train(until)
                except rollback.Rollback as error:
                    rollback.roll_back(self, error.result)
            scores = self.evaluate()
        except stop.StopRequested as request:
            stop.save_and_stop(self, str(request))
        self.finish()
        return scores

    def _train(self, until: int) -> None:
        prefetch = Prefetch(self.data.samples, self._shares(self.samples_seen, until - self.step))
        try:
            while self.step < until:
                self.status.poll()
                self.callbacks.before_step(self.step + 1)
                self._take_step(prefetch)
                self.callbacks.after_step(self.step)
                self.callbacks.phase("step", self.step)
                if self.step % self.recipe.checkpoint.every == 0 or self.step == until:
                    self.save()
                if self.step % self.recipe.validation.every == 0 and self.step != until:
                    self.evaluate()
        finally:
            prefetch.close()

    def _shares(self, first: int, steps: int) -> Iterator[Any]:
        """Yield this rank's sample numbers of each of the next steps. It runs ahead, and must not read the position."""
        batch = self.recipe.global_batch_size
        for number in range(steps):
            yield share_of(first + number * batch, dist.get_rank(), dist.get_world_size(), batch)

    def _take_step(self, prefetch: Prefetch) -> None:
        begun = time.monotonic()
        batch = prefetch.next()
        data_wait = time.monotonic() - begun
        learning_rate = self.stepper.learning_rate(self.step)
        numbers = self.stepper.take(self.step, *batch)
        self.finish_step()  # the step before: its numbers reached the host while this one was launched
        first, self.samples_seen = self.samples_seen, self.samples_seen + self.recipe.global_batch_size
        self.step += 1
        seconds = time.monotonic() - begun
        self.stop_requests.record_duration("step", seconds)
        self.step_metrics.put(
            numbers,
            step=self.step,
            samples=[first, self.samples_seen],
            learning_rate=learning_rate,
            seconds=seconds,
            data_wait=data_wait,
        )

    def finish_step(self) -> None:
        """Write the metrics of the last step. Raises Rollback or CollectiveError after too many bad steps."""
        result = self.step_metrics.write()
        if result is not None:
            rollback.check_bad_steps(result, self.recipe.loss_guard, self.rollbacks)

    def save(self) -> None:
        """Write a checkpoint of this step, and delete old ones beyond `keep`; milestones stay."""
        self.finish_step()
        self.callbacks.phase("save", self.step)
        begun, step = time.monotonic(), self.step

        def done(seconds: float) -> None:
            self.stop_requests.record_duration("save", seconds)
            self.callbacks.event("save", step, {"seconds": round(seconds, 3)})

        progress = {"samples": self.samples_seen, "rollbacks": self.rollbacks}
        self.checkpoints.save(step, self.state.tensors(), progress, done)
        self.saved_at = step
        self.step_metrics.add(checkpoint_stall=time.monotonic() - begun)
        self.callbacks.phase("step", self.step)

    def evaluate(self) -> dict[str, Any]:
        """Score the validation split; return {source: {"loss", ...}} and write it to the metrics."""
        self.finish_step()
        self.callbacks.phase("save", self.step)
        begun = time.monotonic()
        model, objective, size = self.state.model, self.stepper.objective, self.recipe.micro_batch_size
        model.eval()
        results = self.data.validation.evaluate(objective, model, size, self.run.device, self.status.poll)
        model.train()
        self.stop_requests.record_duration("evaluation", time.monotonic() - begun)
        check_finite(results, self.step)
        self.step_metrics.write_validation(self.step, results)
        self.callbacks.phase("step", self.step)
        return results

    def finish(self) -> None:
        """Wait for the save and the gather in flight."""
        self.callbacks.phase("save", self.step)
        self.status.finish()
        self.checkpointer.wait()

    def event(self, event: str, **facts: Any) -> None:
        """Append a line to events.jsonl."""
        self.callbacks.event(event, self.step, facts)

    def close(self) -> None:
        """Close the callbacks."""
        self.callbacks.close()
