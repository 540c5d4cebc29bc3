"""The training loop: FSDP2, AdamW, checkpoints, metrics. What the samples are is the caller's affair."""

import dataclasses
import math
import resource
import time
from pathlib import Path

import torch
import torch.distributed as dist

from stages.lib import checkpoint, journal, parallel
from stages.lib.errors import UserError
from stages.lib.loader import Prefetch
from stages.lib.log import logger
from stages.lib.model import Llama
from stages.lib.training import optimizer
from stages.lib.training.initialize import initialize
from stages.lib.training.schedule import learning_rate


class Trainer:
    """A model, its optimizer and the step that they are at, in a run directory.

    `facts` names what the checkpoints belong to: {"recipe", "corpus", "tokenizer", "vocabulary"}; another's checkpoint
    is refused. All ranks make a trainer and call its methods together; `lease` is None on all ranks but the first.
    """

    def __init__(self, plan, model_recipe, samples, heldout, directory, facts, device, lease):
        self.plan, self.samples, self.heldout = plan, samples, heldout
        self.directory, self.device, self.lease = Path(directory), device, lease
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.facts = facts | {"model": dataclasses.asdict(model_recipe)}
        torch.manual_seed(plan.seed)
        with torch.device("meta"):
            model = Llama(model_recipe, facts["vocabulary"])
        if plan.dtype == "float64":
            model = model.double()
        self.model = parallel.shard(model, plan.dtype, device)
        self.optimizer = optimizer.build(self.model, plan.optimizer)
        self.step = 0
        self.started_at = None

    def start(self, until):
        """Load the newest complete checkpoint at or below step `until`; initial weights where there is none."""
        step = self._newest(until)
        if step is None:
            initialize(self.model, self.plan.seed)
            self.event("start", steps=self.plan.steps, parameters=sum(p.numel() for p in self.model.parameters()))
        else:
            self._load(step)
            self.event("resume", steps=self.plan.steps)
        self.started_at = self.step

    def train(self, until):
        """Train up to step `until`, saving and evaluating on the way; the last step is always saved."""
        begun, progress = time.monotonic(), journal.Progress("step", until, self.step)
        prefetch = Prefetch(self.samples, range(self.step, until), self.rank, self.world_size, self.plan.global_batch)
        try:
            while self.step < until:
                metrics = self._train_step(prefetch)
                if not math.isfinite(metrics["loss"]) or not math.isfinite(metrics["grad_norm"]):
                    raise RuntimeError(
                        f"loss {metrics['loss']} and gradient norm {metrics['grad_norm']} at step {self.step}"
                    )
                self._write(metrics)
                rate = (self.step - self.started_at) * self._tokens_a_step() / (time.monotonic() - begun)
                if self.rank == 0:
                    progress.show(self.step, f"loss {metrics['loss']:.3f}, {rate:,.0f} tokens/s")
                if self.step % self.plan.checkpoint.every == 0 or self.step == until:
                    self.save()
                if self.step % self.plan.heldout.every == 0 and self.step != until:
                    self.evaluate()
        finally:
            prefetch.close()

    def save(self):
        """Write the checkpoint of this step, and delete those that `keep` does not cover."""
        begun = time.monotonic()
        if self.lease:
            self.lease.check()
        step_facts = {"step": self.step, "samples": self.step * self.plan.global_batch}
        directory = checkpoint.directory_of(self.directory, self.step)
        checkpoint.save(directory, self._tensors(), step_facts | self.facts, lease=self.lease)
        if self.rank == 0:
            checkpoint.remove_uncommitted(self.directory, self.step)
            for step in self._beyond_keep():
                checkpoint.remove(checkpoint.directory_of(self.directory, step))
        self.event("save", seconds=round(time.monotonic() - begun, 3))

    def evaluate(self):
        """Score the validation split; returns {source: {"loss", "bits_per_byte"}} and writes it to the metrics."""
        self.model.eval()
        results = self.heldout.evaluate(self.model, self.plan.micro_batch, self.device)
        self.model.train()
        self._write(
            {"step": self.step, "tokens": self.step * self._tokens_a_step(), "heldout": results, "time": time.time()}
        )
        return results

    def event(self, event, **facts):
        """Append a line to events.jsonl."""
        if self.rank == 0:
            logger.info("%s at step %s %s", event, self.step, facts or "")
            entry = {"time": time.time(), "event": event, "step": self.step, "world_size": self.world_size, **facts}
            journal.append(self.directory / "events.jsonl", entry)

    def _train_step(self, prefetch):
        begun = time.monotonic()
        rows = torch.from_numpy(prefetch.next()).long()
        waited = time.monotonic() - begun
        rate = learning_rate(self.plan.schedule, self.plan.optimizer.learning_rate, self.step, self.plan.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        count = rows.shape[0] * (rows.shape[1] - 1) * self.world_size  # every token of a window is a target
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        micro_batches = rows.to(self.device).split(self.plan.micro_batch)
        for number, micro in enumerate(micro_batches):
            self.model.set_requires_gradient_sync(number == len(micro_batches) - 1)
            loss = self.model(micro[:, :-1], micro[:, 1:])
            (loss / count).backward()
            total += loss.detach().double()
        norm = optimizer.clip_gradients(list(self.model.parameters()), self.plan.optimizer.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        dist.all_reduce(total)
        loss = total.item() / count
        first = self.step * self.plan.global_batch
        self.step += 1
        seconds = time.monotonic() - begun
        return {
            "step": self.step,
            "tokens": self.step * self._tokens_a_step(),
            "loss": loss,
            "learning_rate": rate,
            "grad_norm": norm.item(),
            "tokens_per_second": self._tokens_a_step() / seconds,
            "data_wait": waited,
            "memory_mb": self._memory_mb(),
            "seconds": seconds,
            "samples": [first, first + self.plan.global_batch],
            "time": time.time(),
        }

    def _tensors(self):
        return {
            "model": self.model.state_dict(),
            "optimizer": optimizer.moments(self.model, self.optimizer),
            "rng": torch.get_rng_state(),
        }

    def _load(self, step):
        directory = checkpoint.directory_of(self.directory, step)
        tensors = self._tensors()
        checkpoint.load(directory, tensors)
        for name, parameter in self.model.named_parameters():
            self.optimizer.state[parameter] = tensors["optimizer"][name]
        torch.set_rng_state(tensors["rng"])
        self.step = step

    def _newest(self, until):
        """The newest step at or below `until` whose checkpoint is complete and unchanged; None where there is none.

        The first rank says what there is, since ranks that saw something else would wait for each other.
        """
        steps = parallel.from_first(checkpoint.complete_steps(self.directory, until) if self.rank == 0 else None)
        for step in reversed(steps):
            directory = checkpoint.directory_of(self.directory, step)
            commit = parallel.from_first(checkpoint.read_commit(directory) if self.rank == 0 else None)
            for key in ("recipe", "corpus", "tokenizer"):
                if commit[key] != self.facts[key]:
                    raise UserError(
                        f"{directory} belongs to another {key} ({_short(commit[key])}) than this run "
                        f"({_short(self.facts[key])}); move it away"
                    )
            try:
                with parallel.agreeing():
                    checkpoint.verify(directory, commit, self.rank, self.world_size)
                return step
            except UserError as error:
                if self.rank == 0:
                    logger.warning("skipping a damaged checkpoint: %s", error)
        return None

    def _beyond_keep(self):
        """Steps of rolling checkpoints that may go. Later steps are another milestone's: they stay."""
        rolling = [
            step
            for step in checkpoint.complete_steps(self.directory, self.step)
            if not (checkpoint.directory_of(self.directory, step) / checkpoint.MILESTONE).exists()
        ]
        return rolling[: -self.plan.checkpoint.keep]

    def _tokens_a_step(self):
        return self.plan.global_batch * self.plan.seq_len

    def _memory_mb(self):
        if self.device.type == "cuda":
            return round(torch.cuda.max_memory_allocated() / 1e6)
        return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3)

    def _write(self, entry):
        if self.rank == 0:
            journal.append(self.directory / "metrics.jsonl", entry)


def _short(fact):
    return fact[:16] if isinstance(fact, str) else ", ".join(f"{key}={value}" for key, value in fact.items())
