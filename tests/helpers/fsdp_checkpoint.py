"""Save a model under FSDP as fms-fsdp does, and its whole state dict: run on several ranks with a directory."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from stages.lib.distributed.process_group import process_group
from stages.lib.model.architectures import LlamaRecipe
from stages.lib.model.transformer import Block
from tests.helpers.export_fixtures import random_model

RECIPE = LlamaRecipe(
    num_hidden_layers=2, hidden_size=32, num_attention_heads=4, num_key_value_heads=2, intermediate_size=48
)


def main():
    directory = Path(sys.argv[1])
    with process_group():
        model = random_model(RECIPE, 61)
        if dist.get_rank() == 0:
            torch.save(model.state_dict(), directory / "whole.pth")
        policy = ModuleWrapPolicy({Block})
        sharded = FullyShardedDataParallel(model, auto_wrap_policy=policy, device_id=torch.device("cpu"))
        optimizer = torch.optim.AdamW(sharded.parameters())
        with FullyShardedDataParallel.state_dict_type(sharded, StateDictType.SHARDED_STATE_DICT):
            state = {
                "model_state": sharded.state_dict(),
                "optimizer_state": FullyShardedDataParallel.sharded_optim_state_dict(sharded, optimizer),
            }
            writer = dcp.FileSystemWriter(directory / "step_7_ckp", single_file_per_rank=True)
            dcp.save(state, storage_writer=writer)
    return 0


if __name__ == "__main__":
    sys.exit(main())
