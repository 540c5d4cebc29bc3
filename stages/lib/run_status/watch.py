"""The screen of all runs, refreshed until Ctrl-C."""

from __future__ import annotations

import logging
import shutil
import sys
import time
from pathlib import Path

from stages.lib.log import logger
from stages.lib.run_status.overview import Reader
from stages.lib.run_status.page import lines_of
from stages.lib.run_status.queue import Job, jobs_of
from stages.lib.terminal.block import Block
from stages.lib.terminal.drawing import glyphs_for

SECONDS = 5
"""Between two screens."""

QUEUE_EVERY = 30.0
"""Seconds between two calls of squeue, which all users of a cluster share."""


def watch(results: Path, seconds: float) -> None:
    """Show the screen every `seconds` on stdout, until Ctrl-C."""
    logger.setLevel(logging.ERROR)  # warnings of damaged lines would come between the lines of the screen
    block, queue, reader = Block(sys.stdout), Queue(results), Reader()
    glyphs = glyphs_for(sys.stdout.encoding)
    try:
        while True:
            columns, height = block.size()
            block.show(lines_of(str(results), reader.read_all(results), queue.jobs(), columns, height, glyphs))
            time.sleep(seconds)
    except KeyboardInterrupt:
        return


class Queue:
    """The jobs of a workflow in the queue of Slurm, read again every QUEUE_EVERY seconds."""

    def __init__(self, results: Path) -> None:
        self.directory = results.resolve().parent
        self._read = -float("inf")
        self._jobs: list[Job] = []

    def jobs(self) -> list[Job]:
        """Return the jobs as they were read last."""
        if time.monotonic() - self._read >= QUEUE_EVERY and shutil.which("squeue"):
            self._jobs = jobs_of(self.directory)
            self._read = time.monotonic()
        return self._jobs
