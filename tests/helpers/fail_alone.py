"""A stage whose second rank makes a mistake of its own, while the first waits for it."""

import argparse

import torch.distributed as dist

from stages.lib import stage
from stages.lib.distributed import collectives
from stages.lib.errors import UserError


def run(_):
    with collectives.ranks():
        if dist.get_rank() == 1:
            raise UserError("the second rank cannot go on")
        dist.barrier()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.set_defaults(stage_name="fail_alone", recipe_type=None, log=None)
    stage.leave(stage.execute(parser, run))
