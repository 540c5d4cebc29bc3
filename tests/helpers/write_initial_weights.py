"""Write the initial weights of a small model as a checkpoint, on as many ranks as torchrun starts."""

import sys

import torch

from stages.lib import recipe, stage
from stages.lib.checkpoints import dcp
from stages.lib.distributed import collectives
from stages.lib.model.initialize import initialize
from stages.lib.model.llama import Llama
from stages.lib.training import sharding
from stages.pretrain import PretrainRecipe
from tests.helpers.training import OPERATION, RECIPE

if __name__ == "__main__":
    with collectives.ranks() as device:
        plan = recipe.load(PretrainRecipe, RECIPE | OPERATION, "pretrain")
        with torch.device("meta"):
            model = Llama(plan.model, 700)  # more than two blocks of rows, and no multiple of 2 or 3
        sharding.shard(model, plan, device)
        initialize(model, seed=5)
        dcp.save(sys.argv[1], {"model": model.state_dict()}, {"step": 0})
    stage.leave(0)
