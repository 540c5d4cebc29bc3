"""Start from a model whose files the first rank cannot read."""

import sys
from types import SimpleNamespace

from stages.lib import stage
from stages.lib.distributed.process_group import process_group
from stages.lib.errors import UserError
from stages.lib.training import run
from stages.lib.training.settings import options
from stages.lib.training.trainer import Run


class Torn:
    """An initial.Initial whose files are missing when they are hashed."""

    @property
    def digest(self):
        raise UserError("model.safetensors cannot be read")


def train(arguments):
    with process_group() as device:
        inputs = Run(recipe=SimpleNamespace(steps=1), model_config=None, identity=None, device=device, initial=Torn())
        run.train_to_milestone(arguments, inputs, None)


def main():
    parser = stage.parser("torn_initial", __doc__)
    options.add_options(parser)
    return stage.execute(parser, train, ["--until", "1", "--train-dir", sys.argv[1], "--output", "-"])


if __name__ == "__main__":
    stage.leave(main())
