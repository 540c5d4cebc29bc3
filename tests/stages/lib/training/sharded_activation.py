"""Print what each kind of activation checkpointing gives on sharded models: gradients, and the runs of a block."""

import hashlib
import json

import torch
import torch.distributed as dist

from stages.lib import stage
from stages.lib.distributed import collectives
from stages.lib.distributed.process_group import process_group
from stages.lib.model.architectures import LlamaRecipe
from stages.lib.model.initialize import initialize
from stages.lib.model.transformer import Transformer
from stages.lib.training import parallelize
from stages.lib.training.settings.recipe import MODES, ActivationCheckpointingRecipe, TrainRecipe


def measure(kind, how, device):
    """{"gradients": a digest of this rank's shards, "forwards": runs of a block in a step of one micro-batch}."""
    with torch.device("meta"):
        model = Transformer(
            LlamaRecipe(
                num_hidden_layers=4,
                hidden_size=32,
                num_attention_heads=4,
                num_key_value_heads=2,
                intermediate_size=48,
                tie_word_embeddings=True,
            ),
            70,
        )
    forwards = []
    for block in model.base_model.layers:
        block.forward = _counted(block.forward, forwards)
    parallelize.apply_activation_checkpointing(
        model, ActivationCheckpointingRecipe(mode=kind, ratio=0.5 if kind == "ratio" else None)
    )
    parallelize.shard(
        model, TrainRecipe(steps=1, seq_len=48, global_batch_size=2, dtype="float32", sharding=how), device
    )
    initialize(model, seed=3)
    tokens = torch.randint(0, 70, (1, 48), generator=torch.Generator().manual_seed(dist.get_rank()))
    loss, *_ = model(tokens, tokens.roll(-1))
    loss.backward()
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(collectives.local_tensor(parameter.grad).numpy().tobytes())
    return {"gradients": digest.hexdigest(), "forwards": len(forwards)}


def _counted(forward, calls):
    def counted(*arguments):
        calls.append(1)
        return forward(*arguments)

    return counted


if __name__ == "__main__":
    with process_group() as device:
        measured = {how: {kind: measure(kind, how, device) for kind in MODES} for how in ("full", "grad")}
        of_all_ranks = collectives.all_gather_object(measured)
        if dist.get_rank() == 0:
            print(json.dumps(of_all_ranks))
    stage.leave(0)
