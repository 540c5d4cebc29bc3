"""Write the initial weights of a small model as a checkpoint, on as many ranks as torchrun starts."""

import sys

import torch

from stages.lib import checkpoint, parallel, recipe, stage
from stages.lib.model import Llama, ModelRecipe
from stages.lib.training.initialize import initialize
from tests.stages.training import MODEL

if __name__ == "__main__":
    with parallel.ranks() as device:
        shape = recipe.load(ModelRecipe, MODEL, "model")
        with torch.device("meta"):
            model = Llama(shape, 700)  # more than two blocks of rows, and no multiple of 2 or 3
        model = parallel.shard(model, "float32", device)
        initialize(model, seed=5)
        checkpoint.save(sys.argv[1], {"model": model.state_dict()}, {"step": 0})
    stage.leave(0)
