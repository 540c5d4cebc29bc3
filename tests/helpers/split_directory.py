"""Lock a run directory that is another for each rank, as if the nodes shared no file system."""

import os
import sys
from pathlib import Path

from stages.lib import stage
from stages.lib.distributed.process_group import process_group
from stages.lib.training import run_lock
from stages.lib.training.settings import options


def run(arguments):
    with (
        process_group(),
        run_lock.acquire_run_lock(
            arguments.directory / os.environ["RANK"] / "train" / "run", options.Start.from_args(arguments)
        ),
    ):
        pass


def main():
    parser = stage.parser("split_directory", __doc__)
    options.add_options(parser)
    parser.add_argument("--directory", type=Path)
    given = ["--until", "1", "--train-dir", "-", "--output", "-", "--directory"]
    return stage.execute(parser, run, [*given, *sys.argv[1:]])


if __name__ == "__main__":
    run_lock.VISIBLE_SECONDS = 0.5
    stage.leave(main())
