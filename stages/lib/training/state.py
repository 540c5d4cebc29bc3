"""What a training changes: the weights, AdamW's averages, the guard's counts. It is what a checkpoint holds."""

import os

import torch

from stages.lib.distributed import local_shards
from stages.lib.model.initialize import initialize
from stages.lib.model.llama import Llama
from stages.lib.training import activation_checkpointing, optimizer, sharding
from stages.lib.training.faults.loss_guard import LossGuard


class State:
    """A Llama of `shape`, sharded as `plan` says, and its optimizer. All ranks make one together.

    `shard_group`: the ranks over which a parameter's shards lie. The weights are not set until `begin` or a load.
    """

    def __init__(self, plan, shape, vocab_size, device):
        self.plan = plan
        torch.manual_seed(plan.seed)
        torch.use_deterministic_algorithms(plan.deterministic)
        if plan.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # matrix products ask for it
        with torch.device("meta"):
            self.model = Llama(shape, vocab_size)
        if plan.dtype == "float64":
            self.model.double()
        activation_checkpointing.apply(self.model, plan.activation_checkpointing)
        if plan.compile:
            for block in self.model.base_model.layers:
                block.forward = torch.compile(block.forward)  # the hooks of FSDP and StragglerTimer stay outside
        self.shard_group = sharding.shard(self.model, plan, device)
        self.optimizer, self.loss_guard = (
            optimizer.build(self.model, plan.optimizer),
            LossGuard(plan.loss_guard, device),
        )

    def begin(self, initial=None):
        """Set what there is before the first step: drawn weights, or those of an `initial.Initial`."""
        self.optimizer.state.clear()
        self.loss_guard.forget()
        if initial is None:
            initialize(self.model, self.plan.seed)
        else:
            initial.load(self.model, self._moments())

    def tensors(self):
        """What a checkpoint holds; loading fills these very tensors, but for "rng", which is a copy."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self._moments(),
            "rng": torch.get_rng_state(),
            "loss_guard": self.loss_guard.tensors,
        }

    def _moments(self):
        return optimizer.moments(self.model, self.optimizer)

    def num_parameters(self):
        """The parameters of the model, on all ranks together."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    def num_bytes(self):
        """What a checkpoint weighs: (this rank's share, the whole)."""
        width = next(self.model.parameters()).element_size()
        moments = 2 * (2 if self.plan.optimizer.state_dtype == "bfloat16" else width)
        mine = sum(local_shards.local(parameter).numel() for parameter in self.model.parameters())
        return mine * (width + moments), self.num_parameters() * (width + moments)
