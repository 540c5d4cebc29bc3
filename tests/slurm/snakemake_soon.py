"""Snakemake with a Slurm plugin that asks for its jobs twice a second. Nothing else differs from `python -m snakemake`.

By itself the plugin waits 10 s longer after each question to which no job had ended.
"""

import asyncio
import sys

from snakemake.cli import main
from snakemake_executor_plugin_slurm import Executor


async def _sleep(_):
    await asyncio.sleep(0.5)


if __name__ == "__main__":
    Executor.sleep = _sleep
    sys.exit(main())
