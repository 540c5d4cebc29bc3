"""One optimizer step: forward and backward passes over the micro-batches, clipping, the guard, the update."""

import numpy as np
import torch
import torch.distributed as dist

from stages.lib.model.llama import documents_of
from stages.lib.model.loss import IGNORED
from stages.lib.training import sharding
from stages.lib.training.optimizer import clip_gradients, skip_if
from stages.lib.training.schedule import learning_rate

NUMBERS = ("loss", "penalty", "grad_norm", "bad", "bad_steps")


class Stepper:
    """Takes steps. Nothing in it waits for the device."""

    def __init__(self, plan, state, device, document_end=None, steps_before=0):
        """`state`: a State. `document_end`: the token that ends a document, where documents are kept apart.

        `steps_before`: steps of the learning rate's schedule that were taken before this run.
        """
        self.plan, self.state, self.device = plan, state, device
        self.document_end, self.steps_before = document_end, steps_before

    def rate(self, step):
        """The learning rate of a step."""
        before, plan = self.steps_before, self.plan
        return learning_rate(plan.schedule, plan.optimizer.learning_rate, before + step, before + plan.steps)

    def take(self, step, inputs, targets):
        """Take step number `step` (0-based) on this rank's share of a batch, int32 arrays [n, L].

        Returns NUMBERS as a float64 tensor on the device: `bad` is 1 where the step was skipped.
        """
        model, optimizer, loss_guard = self.state.model, self.state.optimizer, self.state.loss_guard
        for group in optimizer.param_groups:
            group["lr"] = self.rate(step)
        sums = torch.zeros(2, dtype=torch.float64, device=self.device)
        # the targets of the whole global batch, before the backward pass: ranks may mask different numbers of them
        count = torch.tensor(float(np.count_nonzero(targets != IGNORED)), dtype=torch.float64, device=self.device)
        dist.all_reduce(count)
        count.clamp_(min=1)
        micro_batches = list(zip(self._split(inputs), self._split(targets), strict=True))
        for number, (tokens, wanted) in enumerate(micro_batches):
            sharding.share_gradients(model, number == len(micro_batches) - 1)
            documents = documents_of(tokens, self.document_end)
            loss, penalty = model(tokens, wanted, documents, self.plan.z_loss)
            ((loss + penalty) / count.to(loss.dtype)).backward()
            sums += torch.stack([loss.detach(), penalty.detach()]).double()
        norm = clip_gradients(list(model.parameters()), self.plan.optimizer.max_grad_norm, self.state.shard_group)
        dist.all_reduce(sums)
        loss, penalty = sums / count
        bad = loss_guard.judge(step, loss, norm.to(loss.device))
        skip_if(optimizer, bad)
        optimizer.step()
        optimizer.zero_grad()
        return torch.stack(
            [loss, penalty, norm.to(loss.device), bad.double(), loss_guard.tensors["bad_steps"].double()]
        )

    def _split(self, rows):
        moved = torch.from_numpy(np.ascontiguousarray(rows))
        if self.device.type == "cuda":
            moved = moved.pin_memory().to(self.device, non_blocking=True)
        return moved.long().split(self.plan.micro_batch_size)
