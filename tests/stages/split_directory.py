"""Take a turn in a directory that is another for each rank, as where nodes share no file system."""

import os
import sys
from pathlib import Path

from stages.lib import parallel, stage
from stages.lib.training import start, turn


def run(arguments):
    with parallel.ranks(), turn.taken(arguments.directory / os.environ["RANK"] / "train" / "run", start.of(arguments)):
        pass


def main():
    parser = stage.parser("split_directory", __doc__)
    start.add_options(parser)
    parser.add_argument("--directory", type=Path)
    given = ["--until", "1", "--train-dir", "-", "--output", "-", "--directory"]
    return stage.execute(parser, run, [*given, *sys.argv[1:]])


if __name__ == "__main__":
    turn.SHARED_SECONDS = 0.5
    stage.leave(main())
