"""Write the initial weights of a small model as a checkpoint, on as many ranks as torchrun starts."""

import sys

import torch

from stages.lib import recipe as recipes
from stages.lib import stage
from stages.lib.checkpoints import dcp
from stages.lib.distributed.process_group import process_group
from stages.lib.model.initialize import initialize
from stages.lib.model.transformer import Transformer
from stages.lib.training import parallelize
from stages.pretrain import PretrainRecipe
from tests.helpers.training import OPERATION, RECIPE

if __name__ == "__main__":
    with process_group() as device:
        recipe = recipes.load(PretrainRecipe, RECIPE | OPERATION, "pretrain")
        with torch.device("meta"):
            model = Transformer(recipe.model, 700)  # more than two blocks of rows, and no multiple of 2 or 3
        parallelize.shard(model, recipe, device)
        initialize(model, seed=5)
        dcp.save(sys.argv[1], {"model": model.state_dict()}, {"step": 0})
    stage.leave(0)
