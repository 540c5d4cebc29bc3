"""Three steps in float8, on any number of ranks; the first rank writes the losses."""

import sys
from pathlib import Path

import numpy as np
import torch.distributed as dist

from stages.lib import recipe
from stages.lib.distributed.process_group import process_group
from stages.lib.model.architectures import ARCHITECTURES
from stages.lib.tokens.loader import share_of
from stages.lib.training.settings.recipe import TrainRecipe
from stages.lib.training.state import State
from stages.lib.training.step import Stepper

SIZES = {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 48}
KEYS = {"steps": 200, "seq_len": 16, "global_batch_size": 2, "float8": True, "optimizer": {"learning_rate": 1e-2}}


def losses(device, steps=3, model=None, **keys):
    """Train a small model on random tokens; return the loss of each step. `model`: more of its keys."""
    train_recipe = recipe.load(TrainRecipe, KEYS | keys, "test")
    state = State(train_recipe, recipe.load(ARCHITECTURES, SIZES | (model or {}), "model"), 64, device)
    state.init_weights()
    stepper, found = Stepper(train_recipe, state, device), []
    for step in range(steps):
        batch = train_recipe.global_batch_size
        rows = np.random.default_rng(step).integers(0, 64, (batch, train_recipe.seq_len + 1))
        rows = rows[list(share_of(0, dist.get_rank(), dist.get_world_size(), batch))]
        found.append(stepper.take(step, rows[:, :-1], rows[:, 1:])[0].item())
    return found, state


def main(sharding, output):
    """Train, and write."""
    with process_group() as device:
        found, _ = losses(device, sharding=sharding)
        if dist.get_rank() == 0:
            Path(output).write_text(" ".join(map(str, found)), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
