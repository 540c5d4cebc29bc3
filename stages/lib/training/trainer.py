"""The training loop: steps, and what happens between them. What the samples are is the caller's affair."""

import contextlib
import dataclasses
import math
import socket
import time
from pathlib import Path

import torch
import torch.distributed as dist

from stages.lib import space, stage
from stages.lib.checkpoints.async_checkpointer import AsyncCheckpointer
from stages.lib.checkpoints.manager import CheckpointManager
from stages.lib.distributed import collectives
from stages.lib.distributed.async_all_gather import AsyncAllGather
from stages.lib.errors import Preempted
from stages.lib.run_directory import journal
from stages.lib.tokens.loader import Prefetch, share_of
from stages.lib.training.faults import stop_requests
from stages.lib.training.faults.stop_requests import StopRequests
from stages.lib.training.faults.watchdog import Watchdog
from stages.lib.training.metrics.device_to_host import AsyncDeviceToHost
from stages.lib.training.metrics.profiler import Profiler
from stages.lib.training.metrics.straggler import StragglerTimer
from stages.lib.training.metrics.throughput import Throughput
from stages.lib.training.metrics.trackers import Trackers
from stages.lib.training.metrics.writer import MetricsWriter
from stages.lib.training.state import State
from stages.lib.training.step import NUMBERS, Stepper


class StopRequested(Exception):
    """All ranks know that the training was asked to stop; the text says by what."""


class Rollback(Exception):
    """All ranks know of too many bad steps in a row; `facts` is what is known of the last one."""

    def __init__(self, facts):
        super().__init__()
        self.facts = facts


class Trainer:
    """A model, its optimizer and the step that they are at, in a run directory.

    `plan`: a TrainRecipe. `shape`: the model's recipe. `facts`: what the checkpoints belong to, {"recipe", "tokenizer",
    "vocabulary", ...}; another's is refused. `begin`: how this start runs (`start.Start`). `initial`: the model to go
    on from, None for none. All ranks make a trainer and call its methods together; `lease` is None on all ranks but
    the first.
    """

    def __init__(self, plan, shape, samples, validation, directory, facts, device, lease, begin, initial=None):
        self.plan, self.samples, self.validation, self.initial = plan, samples, validation, initial
        self.directory, self.device, self.begin = Path(directory), device, begin
        self.first = dist.get_rank() == 0
        self.state = State(plan, shape, facts["vocab_size"], device)
        steps_before = initial.steps_before if initial else 0
        self.stepper = Stepper(plan, self.state, device, samples.document_end, steps_before)
        self.checkpointer, self.status_gather, self.device_to_host = (
            AsyncCheckpointer(plan.checkpoint.asynchronous),
            AsyncAllGather(3),
            AsyncDeviceToHost(device),
        )
        facts = facts | {"model": dataclasses.asdict(shape), "steps_before": steps_before}
        self.checkpoints = CheckpointManager(self.directory, facts, plan.checkpoint.keep, self.checkpointer, lease)
        self.metrics = MetricsWriter(self.directory, collectives.all_gather_object(socket.gethostname()))
        saved = plan.activation_checkpointing.mode, plan.activation_checkpointing.ratio
        self.throughput = Throughput(shape, facts["vocab_size"], plan.seq_len, dist.get_world_size(), device, saved)
        self.profiler = Profiler(directory, begin.profile_steps, begin.memory_snapshot, device)
        watched, share = self.directory if self.first else None, self.state.num_bytes()[0]
        self.stop_requests = StopRequests(watched, begin.deadline, share)
        self.step = self.seen = self.rollbacks = 0  # steps taken, samples passed, rollbacks made
        self.saved_at = None  # the step of the newest checkpoint
        self.straggler = StragglerTimer(self.state.model, device)
        self._unread = self._between = None  # of the last step: its facts, and what happened before it
        self._marks, self._own_seconds = [], 0.0
        self.watchdog = Watchdog(plan.watchdog, directory, lambda message: stage.out_of_time(begin.stage, message))

    def start(self, until):
        """Load the newest complete checkpoint at or below step `until`; initial weights where there is none."""
        profiled = self.begin.profile_steps
        if profiled is not None and profiled[0] > until:
            raise collectives.CollectiveError(
                f"--profile-steps must begin at or before step {until}, where this training ends, got {profiled[0]}"
            )
        if self.first:
            stop_requests.clear_marker(self.directory)
        found = self.checkpoints.newest(until)
        if found is None:
            self._begin()
        else:
            self._load(*found)
        if self.step < until:
            self._take_up_rollback()
        self._check_room()
        self.checkpointer.prepare(self.state.tensors())
        facts = {"steps": self.plan.steps, "parameters": self.state.num_parameters()}
        self.event("start" if found is None else "resume", **facts, **self.throughput.facts())
        with collectives.raise_on_all_ranks():
            if self.first:
                name = f"{self.directory.parents[1].name}-{self.directory.name}"
                facts |= self.checkpoints.facts | self.throughput.facts()
                self.metrics.trackers = Trackers(self.plan.trackers, self.directory, name, facts, self.step)

    def train(self, until):
        """Train up to step `until`, saving and evaluating on the way; returns what the last evaluation gave.

        The checkpoint of step `until` is then on the disk. Raises Preempted on all ranks when the training was asked to
        stop, after it has saved.
        """
        try:
            while self.step < until:
                try:
                    self._train(until)
                except Rollback as rollback:
                    self._roll_back(rollback.facts)
            scores = self.evaluate()
        except StopRequested as asked:
            self._stop(str(asked))
        self._finish()
        return scores

    def _finish(self):
        self.watchdog.phase("save", self.step)
        self.status_gather.finish()
        self.checkpointer.wait()

    def close(self):
        """End what runs beside the training."""
        self.watchdog.stop()
        self.profiler.close()
        if self.metrics.trackers is not None:
            self.metrics.trackers.close()

    def _train(self, until):
        progress = journal.Progress("step", until, self.step)
        begun, first = time.monotonic(), self.step
        prefetch = Prefetch(self.samples, self._shares(self.seen, until - self.step))
        try:
            while self.step < until:
                self._poll()
                self.profiler.before(self.step + 1)
                self._take_step(prefetch)
                self.profiler.after(self.step)
                self.watchdog.phase("step", self.step)
                rate = (self.step - first) * self._tokens_a_step() / (time.monotonic() - begun)
                if self.first:
                    loss = "" if self.metrics.loss is None else f"loss {self.metrics.loss:.3f}, "
                    progress.show(self.step, f"{loss}{rate:,.0f} tokens/s")
                if self.step % self.plan.checkpoint.every == 0 or self.step == until:
                    self.save()
                if self.step % self.plan.validation.every == 0 and self.step != until:
                    self.evaluate()
        finally:
            prefetch.close()

    def _shares(self, first, steps):
        """The sample numbers of this rank in each of the next steps. Read ahead: it must not look at where we are."""
        batch = self.plan.global_batch_size
        for number in range(steps):
            yield share_of(first + number * batch, dist.get_rank(), dist.get_world_size(), batch)

    def _take_step(self, prefetch):
        begun = time.monotonic()
        inputs, targets = prefetch.next()
        waited = time.monotonic() - begun
        rate = self.stepper.rate(self.step)
        numbers = self.stepper.take(self.step, inputs, targets)
        self._read()  # the step before: its numbers came while this one was begun
        self.device_to_host.put(numbers)
        first, self.seen = self.seen, self.seen + self.plan.global_batch_size
        self.step += 1
        seconds = time.monotonic() - begun
        self.stop_requests.took("step", seconds)
        figures = self.throughput.step(seconds=seconds, data_wait=waited, tokens=self._tokens_a_step())
        facts = {"step": self.step, "tokens": self._tokens(), "learning_rate": rate, "samples": [first, self.seen]}
        self._unread = facts | figures | (self._between or {})
        self._marks, self._between = self.straggler.marks(), None

    def _read(self):
        """Write the last step's metrics. Raises Rollback or CollectiveError after too many bad steps."""
        if self._unread is None:
            return
        facts, self._unread = self._unread, None
        numbers = dict(zip(NUMBERS, self.device_to_host.get(), strict=True))
        self._own_seconds = facts["data_wait"] + self.straggler.seconds(self._marks)
        bad, bad_steps = bool(numbers.pop("bad")), int(numbers.pop("bad_steps"))
        if bad:
            facts["skipped"] = True
            skipped = {"loss": str(numbers["loss"]), "grad_norm": str(numbers["grad_norm"])}
            self.metrics.event("skip", facts["step"], samples=facts["samples"], **skipped)
        facts |= self.samples.figures(facts["samples"][1])
        self.metrics.step(facts, numbers)
        if bad_steps >= self.plan.loss_guard.bad_steps:
            if self.plan.loss_guard.on_repeated == "rollback" and self.rollbacks < self.plan.loss_guard.max_rollbacks:
                raise Rollback(facts)
            raise collectives.CollectiveError(
                f"the training must not go on: {bad_steps} steps in a row were skipped, the last with loss "
                f"{numbers['loss']} and gradient norm {numbers['grad_norm']} at step {facts['step']}; lower "
                "optimizer.learning_rate, look at the text with tools.inspect, or set loss_guard.on_repeated to "
                "rollback"
            )

    def _roll_back(self, facts):
        """Go back to before the bad steps, and pass by every sample since, the last bad step's included."""
        self.watchdog.phase("save", self.step)
        self.checkpointer.wait()
        self._unread = None
        found = self.checkpoints.before(facts["step"] - self.plan.loss_guard.bad_steps, self.step)
        left, rollbacks = self.step, self.rollbacks + 1
        if found is None:
            self._begin()
        else:
            self._load(*found)
        self.checkpoints.forget_after(self.step, left)
        self.state.loss_guard.forget_streak()
        passed = [self.seen, facts["samples"][1]]
        self.seen, self.rollbacks = passed[1], rollbacks
        self.event("rollback", left=left, samples=passed)
        if self.metrics.trackers is not None:
            self.metrics.trackers.rollback(self.step)

    def _poll(self):
        """Hear what all ranks said a turn ago. Raises Asked, or what a save raised, on all ranks alike."""
        rows = self.status_gather.turn([self.stop_requests.code(), self.checkpointer.failed(), self._own_seconds])
        if rows is None:
            return
        if rows[:, 1].any():
            self.checkpointer.wait()
        code = int(rows[:, 0].max())
        if code:
            raise StopRequested(stop_requests.REASONS[code])
        if len(rows) > 1:
            self._between = (self._between or {}) | {"ranks": self.metrics.ranks(rows[:, 2].tolist())}

    def _stop(self, reason):
        with contextlib.suppress(Rollback):  # the next start comes to the same bad steps, and rollbacks then
            self._read()
            if self.saved_at != self.step:
                self.save()
        self._finish()
        if self.first:
            stop_requests.leave_marker(self.directory, reason, self.saved_at or 0)
        dist.barrier()  # else another rank would give the reason before the first one's last lines
        saved = "before its first checkpoint" if self.saved_at is None else f"saved at step {self.saved_at}"
        raise Preempted(f"stopped by {reason}, {saved}; start it again and it goes on")

    def save(self):
        """Write a checkpoint of this step and delete those that `keep` no longer holds; not the milestones'."""
        self._read()
        self.watchdog.phase("save", self.step)
        begun, step = time.monotonic(), self.step

        def done(seconds):
            self.stop_requests.took("save", seconds)
            self.metrics.event("save", step, seconds=round(seconds, 3))

        self.checkpoints.save(step, self.state.tensors(), {"samples": self.seen, "rollbacks": self.rollbacks}, done)
        self.saved_at = step
        self._between = (self._between or {}) | {"checkpoint_stall": time.monotonic() - begun}
        self.watchdog.phase("step", self.step)

    def evaluate(self):
        """Score what is held out; returns {source: {"loss", "bits_per_byte"}} and writes it to the metrics."""
        self._read()
        self.watchdog.phase("save", self.step)
        begun = time.monotonic()
        self.state.model.eval()
        results = self.validation.evaluate(self.state.model, self.plan.micro_batch_size, self.device, self._poll)
        self.state.model.train()
        self.stop_requests.took("evaluation", time.monotonic() - begun)
        for source, scores in results.items():
            if not math.isfinite(scores["loss"]):
                raise collectives.CollectiveError(
                    f"the weights overflowed: the validation loss of {source} is {scores['loss']} at step {self.step}"
                )
        self.metrics.validation(self.step, self._tokens(), results)
        self.watchdog.phase("step", self.step)
        return results

    def event(self, event, **facts):
        """Append a line to events.jsonl."""
        self.metrics.event(event, self.step, **facts)

    def _begin(self):
        """The weights before the first step."""
        self.state.begin(self.initial)
        self.step = self.rollbacks = 0
        self.seen = self.initial.samples_before if self.initial else 0

    def _load(self, step, commit):
        tensors = self.state.tensors()
        self.checkpoints.load(step, tensors)
        torch.set_rng_state(tensors["rng"])
        self.step = self.saved_at = step
        self.seen, self.rollbacks = commit["samples"], commit.get("rollbacks", 0)

    def _take_up_rollback(self):
        """Go on as a rollback said after which there is no checkpoint yet: what it passed by stays passed by.

        Without this, samples that were told as passed by would be trained on where their steps are good this time.
        """
        events = journal.read(self.directory / "events.jsonl") if self.first else []
        made = collectives.broadcast_object([event for event in events if event["event"] == "rollback"])
        if len(made) > self.rollbacks and [made[-1]["step"], made[-1]["samples"][0]] == [self.step, self.seen]:
            self.seen, self.rollbacks = made[-1]["samples"][1], len(made)
            self.state.loss_guard.forget_streak()

    def _check_room(self):
        """Raise UserError where the next checkpoint has no room or no time; better now than after hours."""
        with collectives.raise_on_all_ranks():
            if self.first:
                self.stop_requests.check_time(self.begin.end_of_job)
                whole = self.state.num_bytes()[1]
                space.require(self.directory, whole, "a checkpoint", num_files=dist.get_world_size())

    def _tokens_a_step(self):
        return self.plan.global_batch_size * self.plan.seq_len

    def _tokens(self):
        return self.step * self._tokens_a_step()
