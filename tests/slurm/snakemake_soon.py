"""Snakemake with a Slurm plugin that polls its jobs twice a second. Nothing else differs from `python -m snakemake`.

By itself the interval starts at the profile's seconds, and grows with each query to which no job had ended.
"""

import sys

from snakemake.cli import main
from snakemake_executor_plugin_slurm import Executor

if __name__ == "__main__":
    Executor.next_seconds_between_status_checks = property(lambda _: 0.5, lambda *_: None)
    sys.exit(main())
