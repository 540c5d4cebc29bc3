"""Ranks with a fault: `RANKS -m tests.helpers.faulty_ranks NAME ARGUMENTS`, where NAME is a function of this module."""

import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import torch.distributed as dist

from stages import pretrain
from stages.lib import stage
from stages.lib.distributed.process_group import process_group
from stages.lib.errors import UserError
from stages.lib.model.transformer import Block
from stages.lib.training import run, run_lock
from stages.lib.training.settings import options
from stages.lib.training.trainer import Run

SLEEP = 0.02


def slow_rank(*arguments):
    """stages.pretrain with a second rank whose blocks take longer, like a throttled GPU."""
    forward = Block.forward

    def slowed(*inputs):
        time.sleep(SLEEP * dist.get_rank())
        return forward(*inputs)

    Block.forward = slowed
    return pretrain.main(list(arguments))


def fail_alone():
    """A stage whose second rank fails while the first waits for it."""

    def fail(_):
        with process_group():
            if dist.get_rank() == 1:
                raise UserError("the second rank cannot go on")
            dist.barrier()

    return stage.execute(stage.parser("fail_alone", ""), fail, [])


def split_directory(directory):
    """Lock a run directory that is another for each rank, as if the nodes shared no file system."""
    run_lock.VISIBLE_SECONDS = 0.5

    def lock(arguments):
        place = Path(directory, os.environ["RANK"], "train", "run")
        with process_group(), run_lock.acquire_run_lock(place, options.Start.from_args(arguments)):
            pass

    return _execute("split_directory", lock, "-")


def torn_initial(train_dir):
    """Start from a model whose files the first rank cannot read."""

    class Torn:
        """An initial.Initial whose files are missing when they are hashed."""

        @property
        def digest(self):
            raise UserError("model.safetensors cannot be read")

    def train(arguments):
        with process_group() as device:
            inputs = Run(
                recipe=SimpleNamespace(steps=1), model_config=None, identity=None, device=device, initial=Torn()
            )
            run.train_to_milestone(arguments, inputs, None)

    return _execute("torn_initial", train, train_dir)


def _execute(name, call, train_dir):
    parser = stage.parser(name, "")
    options.add_options(parser)
    return stage.execute(parser, call, ["--until", "1", "--train-dir", train_dir, "--output", "-"])


if __name__ == "__main__":
    stage.leave(globals()[sys.argv[1]](*sys.argv[2:]))
