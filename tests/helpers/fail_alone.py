"""A stage whose second rank fails while the first waits for it."""

import argparse

import torch.distributed as dist

from stages.lib import stage
from stages.lib.distributed.process_group import process_group
from stages.lib.errors import UserError


def run(_):
    with process_group():
        if dist.get_rank() == 1:
            raise UserError("the second rank cannot go on")
        dist.barrier()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.set_defaults(stage_name="fail_alone", recipe_type=None, log=None)
    stage.leave(stage.execute(parser, run))
