"""stages.pretrain with a second rank whose blocks take longer, like a throttled GPU."""

import sys
import time

import torch.distributed as dist

from stages import pretrain
from stages.lib import stage
from stages.lib.model.transformer import Block

SLEEP = 0.02


def slowed(forward):
    """Return the forward pass of a block, slowed down on the second rank."""

    def run(*arguments):
        time.sleep(SLEEP * dist.get_rank())
        return forward(*arguments)

    return run


if __name__ == "__main__":
    Block.forward = slowed(Block.forward)
    stage.leave(pretrain.main(sys.argv[1:]))
