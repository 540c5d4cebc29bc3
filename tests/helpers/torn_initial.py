"""Go on from a model of which the first rank finds that its files cannot be read."""

import sys
from types import SimpleNamespace

from stages.lib import stage
from stages.lib.distributed import collectives
from stages.lib.errors import UserError
from stages.lib.training import options, run


class Torn:
    """An initial.Initial whose files are gone when they are hashed."""

    @property
    def digest(self):
        raise UserError("model.safetensors cannot be read")


def reach(arguments):
    with collectives.ranks() as device:
        run.train_to_milestone(arguments, SimpleNamespace(steps=1), None, {}, None, device, Torn())


def main():
    parser = stage.parser("torn_initial", __doc__)
    options.add_options(parser)
    return stage.execute(parser, reach, ["--until", "1", "--train-dir", sys.argv[1], "--output", "-"])


if __name__ == "__main__":
    stage.leave(main())
