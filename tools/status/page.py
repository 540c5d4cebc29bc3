"""The screen of all runs: a headline, one line per run, the jobs in the queue of Slurm; refreshed in place."""

from __future__ import annotations

import getpass
import logging
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from stages.lib import manifest
from stages.lib.log import logger
from stages.lib.render import numbers
from stages.lib.render.terminal import Glyphs, bar, fit, glyphs_for, sparkline
from tools.status.state import GROUPS, TRAINING, WAITING, Overview, Reader

QUEUE_SECONDS = 10
"""Longest wait for squeue."""

FORMAT = "%i|%j|%T|%M|%l|%R|%Z"


@dataclass(frozen=True)
class Job:
    """A job, with Slurm's words for its state and reason."""

    number: str
    name: str
    state: str
    elapsed: str
    limit: str
    reason: str
    """The nodes of a running job, in brackets why another waits."""

    def __str__(self) -> str:
        """Return one line."""
        return f"{self.number:<12} {self.name}: {self.state}, {self.elapsed} of {self.limit}, {self.reason}"

    def trains(self, run: str) -> bool:
        """Return whether this is a training of a run, by its name: pretrain_RUN_MILESTONE."""
        clean = re.escape(re.sub(r"[^\w.-]+", "_", run))  # as the workflow makes names of jobs
        stages = "|".join(manifest.TRAINING)
        return re.fullmatch(rf"(?:{stages})_{clean}_(?:[0-9]{{8}}|epoch[0-9]+)", self.name) is not None


def jobs_of(directory: Path) -> list[Job]:
    """Return the Slurm jobs of this user that were submitted in a directory; [] without Slurm."""
    command = ["squeue", "--noheader", "--user", getpass.getuser(), "--format", FORMAT]
    try:
        text = subprocess.run(command, capture_output=True, text=True, timeout=QUEUE_SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    separators = FORMAT.count("|")
    rows = [line.split("|", separators) for line in text.splitlines() if line.count("|") >= separators]
    return [
        Job(number, name, state.lower(), elapsed, limit, reason)
        for number, name, state, elapsed, limit, reason, place in rows
        if place == str(directory)
    ]


WIDTH, HEIGHT = 80, 24
"""Of a terminal that does not tell its size, in characters."""

FILE_WIDTH, FILE_HEIGHT = 120, 10_000
UP, CLEAR_LINE, CLEAR_BELOW, CLEAR_ALL = "\x1b[{}A", "\x1b[K", "\x1b[J", "\x1b[H\x1b[2J"


class Block:
    """Lines on `stream`. Nothing has to be restored at the end: the cursor stands below the last lines."""

    def __init__(self, stream: TextIO) -> None:
        self.stream, self.terminal = stream, stream.isatty()
        self._num_lines = 0
        self._size: os.terminal_size | None = None

    def size(self) -> os.terminal_size:
        """Return (columns, lines) that a block may have; a file has no limit on lines."""
        if not self.terminal:
            given = os.environ.get("COLUMNS", "")
            return os.terminal_size((int(given) if given.isdigit() else FILE_WIDTH, FILE_HEIGHT))
        columns, height = shutil.get_terminal_size((WIDTH, HEIGHT))
        return os.terminal_size((columns, max(1, height - 1)))  # the cursor's line stays free

    def show(self, lines: Sequence[str]) -> None:
        """Show lines, none longer than the size's columns, in place of those before."""
        begin = end_of_line = end = ""
        if self.terminal:
            end_of_line, end = CLEAR_LINE, CLEAR_BELOW
            size, before = self.size(), self._size
            if before is not None and size != before:  # a terminal of another size has wrapped the lines
                begin = CLEAR_ALL
            elif self._num_lines:
                begin = UP.format(self._num_lines) + "\r"
            self._size, self._num_lines = size, len(lines)
        # at once, so that nothing flickers
        self.stream.write(begin + "".join(f"{line}{end_of_line}\n" for line in lines) + end)
        self.stream.flush()


SEPARATORS = re.compile("[-_]")


def shortened(names: Iterable[str], width: int) -> dict[str, str]:
    """Return {name: what to show of it}. Of names that are too long for the width, what tells them apart is left.

    `lr-learning_rate_0.001-seed_0` beside others of the sweep becomes `lr-0.001-0`: the words that all of them have are
    left out, except the first. The result may still be too long.
    """
    shown, alike = {}, defaultdict(list)
    for name in names:
        shown[name] = name
        if len(name) > width:
            words = SEPARATORS.split(name)
            alike[words[0], len(words)].append((name, words))
    for group in alike.values():
        differ = [len(set(column)) > 1 for column in zip(*(words for _, words in group), strict=True)]
        for name, words in group:
            own = [word for word, is_own in zip(words[1:], differ[1:], strict=True) if is_own]
            shown[name] = "-".join([words[0], *own]) if own else name
    return shown


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


MIN_NAME, MAX_NAME = 8, 32
WIDE = 100
"""Columns from which bars and curves are longer."""

QUEUE_SHARE = 4
"""At most one line in so many is of the queue."""


def lines_of(
    title: str, overviews: Sequence[Overview], jobs: Sequence[Job], columns: int, height: int, glyphs: Glyphs
) -> list[str]:
    """Return at most `height` lines of at most `columns` characters.

    Runs that train come first, then those that wait, then those that are done; what does not fit is counted.
    """
    states = _counts(overviews) or "no run has started"
    lines = [f"{time.strftime('%H:%M:%S')}  {states}  {title}"]  # the path last: it may be cut
    queue = _queue_lines(jobs, max(2, height // QUEUE_SHARE))
    room = max(0, height - len(lines) - len(queue) - 1)
    rows = sorted(overviews, key=lambda overview: GROUPS.index(overview.group))
    if rows and room:
        longest = MAX_NAME if columns >= WIDE else MIN_NAME + 6
        names = shortened((overview.name for overview in rows), longest)
        width = min(longest, max(MIN_NAME, *map(len, names.values())))
        bar_width, curve_width = (16, 24) if columns >= WIDE else (8, 8)
        rows_shown = rows if len(rows) <= room else rows[: room - 1]
        cells = [("run", "progress", "", "left", "tok/s", "loss", "curve", "last")]
        for overview in rows_shown:
            name = fit(names[overview.name], width, glyphs)
            cells.append((name, *_cells(overview, jobs, bar_width, curve_width, glyphs)))
        lines += [
            f"{name:<{width}} {drawn:<{bar_width}} {step:>4} {left:>8} {speed:>6} {loss:>6} "
            f"{curve:<{curve_width}} {last}"
            for name, drawn, step, left, speed, loss, curve, last in cells
        ]
        if rest := rows[len(rows_shown) :]:
            lines.append(f"and {len(rest)} more: {_counts(rest)}")
    return [fit(line, columns, glyphs).rstrip() for line in [*lines, *queue]][:height]


def _counts(overviews: Sequence[Overview]) -> str:
    counts = Counter(overview.group for overview in overviews)
    return ", ".join(f"{counts[group]} {group}" for group in GROUPS if counts[group])


def _cells(
    overview: Overview, jobs: Sequence[Job], bar_width: int, curve_width: int, glyphs: Glyphs
) -> tuple[str, str, str, str, str, str, str]:
    """Return bar, progress, time left, speed, loss, curve, and what happened last; of a run that waits, its job."""
    speed, trains = overview.tokens_per_second, overview.group == TRAINING
    share = min(1.0, overview.step / overview.total) if overview.total else None
    own = [job for job in jobs if job.trains(overview.name)] if overview.group == WAITING else []
    return (
        bar(share or 0.0, bar_width, glyphs),
        numbers.short(overview.step) if share is None else f"{int(share * 100)}%",
        numbers.clock(overview.left) if overview.left is not None and trains else "",
        numbers.short(speed) if speed is not None and trains else "",
        "-" if overview.loss is None else f"{overview.loss:.3f}"[:6],
        sparkline(overview.losses, curve_width, glyphs),
        f"job {own[0].number} {own[0].state} {own[0].reason}" if own else overview.last,
    )


def _queue_lines(jobs: Sequence[Job], most: int) -> list[str]:
    if not jobs:
        return []
    counts = Counter(job.state for job in jobs)
    states = ", ".join(f"{count} {state}" for state, count in counts.most_common())
    listed = sorted(jobs, key=lambda job: job.state != "running")[: most - 1]
    hidden = len(jobs) - len(listed)
    return [
        f"queue of Slurm: {states}" + (f" ({hidden} not listed)" if hidden else ""),
        *(f"  {job}" for job in listed),
    ]
