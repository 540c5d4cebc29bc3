"""Print digests of a sharded model and its moments after a step, after one that is skipped, and after another."""

import hashlib
import json

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from stages.lib import stage
from stages.lib.distributed.process_group import process_group
from stages.lib.model.architectures import LlamaRecipe
from stages.lib.model.initialize import initialize
from stages.lib.model.transformer import Transformer
from stages.lib.training import parallelize
from stages.lib.training.optimizers import registry
from stages.lib.training.optimizers.recipe import OptimizerRecipe
from stages.lib.training.settings.recipe import TrainRecipe


def digests(moments, device):
    """sha256 of all weights, moments and step counters, after each of three steps."""
    with torch.device("meta"):
        model = Transformer(
            LlamaRecipe(num_hidden_layers=1, hidden_size=32, num_attention_heads=4, intermediate_size=48), 70
        )
    parallelize.shard(model, TrainRecipe(steps=1, seq_len=48, global_batch_size=2, dtype="float32"), device)
    initialize(model, seed=3)
    built = registry.build(model, OptimizerRecipe(state_dtype=moments))
    found = []
    for skipped in (False, True, False):
        for parameter in model.parameters():
            # a gradient that no reduction has rounded: the same bits on any number of ranks
            parameter.grad = torch.full_like(parameter, float("nan")) if skipped else parameter.detach().clone()
        registry.skip_if(built, torch.tensor(float(skipped)))
        built.step()
        found.append(digest(model, built))
    return found


def digest(model, built):
    """sha256 of all that a step changes."""
    made = hashlib.sha256()
    for name, state in registry.named_state(model, built).items():
        for tensor in (model.get_parameter(name), *state.values()):
            whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            made.update(whole.detach().double().numpy().tobytes())
    return made.hexdigest()


if __name__ == "__main__":
    with process_group() as device:
        found = {moments: digests(moments, device) for moments in ("float32", "bfloat16")}
        if dist.get_rank() == 0:
            print(json.dumps(found))
    stage.leave(0)
