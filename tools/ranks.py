"""Print how many processes `workflow/launch auto` starts for a stage on this machine.

    python -m tools.ranks -- -m stages.pretrain --recipe recipe.json

It prints two numbers: processes, and GPUs by nvidia-smi and CUDA_VISIBLE_DEVICES. One process per GPU; without GPUs two
for a training, one for other stages. If the batch of a training cannot be divided among so many, the largest number
that fits, with a warning. One for a suite with `backend: vllm`, whose process uses all GPUs. It imports no torch.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Sequence
from typing import Any

from stages.lib import recipe as recipes
from stages.lib import stage
from stages.lib.distributed import gpus
from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.training.settings.recipe import RANKS_WITHOUT_GPUS, TrainRecipe, ranks_that_fit


def ranks_of(keys: dict[str, Any], num_gpus: int) -> int:
    """Return the number of processes for a recipe on a machine with `num_gpus` GPUs."""
    batch, micro_batch = keys.get("global_batch_size"), keys.get("micro_batch_size", TrainRecipe.micro_batch_size)
    if keys.get("backend") == "vllm":
        return 1
    if not (type(batch) is type(micro_batch) is int and batch > 0 and micro_batch > 0):
        return num_gpus or 1  # not a training, or a mistake that the stage reports
    fitting = ranks_that_fit(batch, micro_batch, num_gpus or RANKS_WITHOUT_GPUS)
    if fitting < num_gpus:
        logger.warning(
            "%s of %s GPUs are used: the largest number of ranks that divides global_batch_size %s into "
            "micro-batches of %s",
            *(fitting, num_gpus, batch, micro_batch),
        )
    return fitting


def run(arguments: argparse.Namespace) -> None:
    """Print the number of processes, and the number of GPUs."""
    texts = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    texts.add_argument("--recipe", default="{}")
    texts.add_argument("--operation", default="{}")
    stage_options, _ = texts.parse_known_args(arguments.words)
    keys: dict[str, Any] = {}
    with contextlib.suppress(UserError):  # the stage reports it
        keys = recipes.merge_texts([stage_options.recipe, stage_options.operation])
        keys = TrainRecipe.written_out(keys, "recipe")
    num_gpus = gpus.count()
    print(ranks_of(keys, num_gpus), num_gpus)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    parser = stage.parser("tools.ranks", __doc__)
    parser.add_argument("words", nargs="*", help="the stage's command line, after `--`; recipes in it are read")
    return stage.execute(parser, run, argv)


if __name__ == "__main__":
    stage.leave(main())
