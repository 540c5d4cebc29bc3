"""Train as stages.pretrain does with `sharding: none`, but through torch's DistributedDataParallel, on two ranks."""

import dataclasses
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from stages.lib import recipe as recipes
from stages.lib import stage
from stages.lib.distributed.process_group import process_group
from stages.lib.model.initialize import initialize
from stages.lib.model.transformer import Transformer
from stages.lib.tokens.corpus import Corpus
from stages.lib.tokens.loader import Samples, share_of
from stages.lib.training.optimizers import registry
from stages.lib.training.optimizers.optimizer import clip_gradients, set_learning_rate
from stages.lib.training.optimizers.schedule import learning_rate
from stages.pretrain import PretrainRecipe
from tests.helpers.training import OPERATION, RECIPE


def main(corpus_path, steps, output, optimizer_name):
    """Write the weights after `steps` steps."""
    with process_group():
        recipe = recipes.load(PretrainRecipe, RECIPE | OPERATION, "pretrain")
        recipe = dataclasses.replace(recipe, optimizer=dataclasses.replace(recipe.optimizer, name=optimizer_name))
        corpus = Corpus(corpus_path)
        samples = Samples(corpus, recipe.weights, recipe.seq_len, recipe.seed)
        model = Transformer(recipe.model, corpus.tokenizer["vocab_size"])
        initialize(model, recipe.seed)
        optimizer = registry.build(model, recipe.optimizer)
        wrapped = DistributedDataParallel(model)
        alone = dist.new_group([dist.get_rank()], use_local_synchronization=True)  # every rank has all gradients
        count = recipe.global_batch_size * recipe.seq_len
        for step in range(int(steps)):
            rate = learning_rate(recipe.schedule, recipe.optimizer.learning_rate, step, recipe.steps)
            set_learning_rate(optimizer.param_groups, rate)
            numbers = share_of(
                step * recipe.global_batch_size, dist.get_rank(), dist.get_world_size(), recipe.global_batch_size
            )
            batch = [
                torch.from_numpy(rows.copy()).long().split(recipe.micro_batch_size) for rows in samples.batch(numbers)
            ]
            micro_batches = list(zip(*batch, strict=True))
            for number, (tokens, targets) in enumerate(micro_batches):
                wrapped.require_backward_grad_sync = number == len(micro_batches) - 1
                loss, *_ = wrapped(tokens, targets)
                (loss / count).backward()
            for parameter in model.parameters():
                parameter.grad.mul_(dist.get_world_size())  # DDP takes the mean: with two ranks exactly half the sum
            clip_gradients(optimizer, recipe.optimizer.max_grad_norm, alone)
            optimizer.step()
            optimizer.zero_grad()
        if dist.get_rank() == 0:
            torch.save(model.state_dict(), output)
    return 0


if __name__ == "__main__":
    stage.leave(main(*sys.argv[1:]))
