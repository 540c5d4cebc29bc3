"""Snakemake's logger plugin `caravan`: one line per start and end of a job, in place of Snakemake's blocks of ten.

The profiles load it. Snakemake finds it by its name, since the checkout is on the path of this Python.

Snakemake's own log, .snakemake/log/*.log, keeps the blocks. Errors, warnings and dry runs are as Snakemake shows them,
and with --verbose so is everything. On a terminal the last line shows how far trainings on a cluster are; those on this
machine show it themselves.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snakemake.logging import ColorizingTextHandler, DefaultFormatter, LogEvent, get_event
from snakemake_interface_logger_plugins.base import LogHandlerBase

CLEAR = "\r\x1b[2K"
"""Clears the terminal's line, which may have the progress of a stage."""

HIDDEN_EVENTS = (LogEvent.WORKFLOW_STARTED, LogEvent.JOB_STARTED, LogEvent.RESOURCES_INFO)
HIDDEN_LINES = ("Select jobs to execute", "Using shell: ", "Conda environments: ignored")
"""Parts that do not change from run to run."""

LONGEST_LINE = 1000
"""Characters of a line of an error; its middle is left out of a longer one."""

REFRESH_SECONDS = 5
"""Between two looks at the trainings on a cluster."""

TAIL_BYTES = 16 << 10
"""Bytes at the end of metrics.jsonl that are read: 10 to 20 steps."""

TRAINING = ("pretrain", "finetune")


@dataclass(frozen=True)
class Job:
    """A job that was started, or submitted."""

    name: str
    is_target: bool
    """It runs no command, as `all`."""

    model: Path | None
    """The manifest that a training on a cluster makes."""

    started: float
    """In seconds since 1970."""


class JobLines(DefaultFormatter):
    """Texts of log records; "" for those that are not shown."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.jobs: dict[int, Job] = {}
        self._ended: list[str] = []
        """Lines of ended jobs, which wait for the record with the count of all that ended."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the text of a record."""
        event = get_event(record)
        if event in HIDDEN_EVENTS and record.levelno <= logging.INFO:
            return ""
        if event is None and record.levelno == logging.INFO and str(record.msg).startswith(HIDDEN_LINES):
            return ""
        text = super().format(record)
        if record.levelno < logging.ERROR:
            return text
        # without most of a command that holds the recipes of hundreds of runs
        lines, half = text.split("\n"), LONGEST_LINE // 2
        for number, line in enumerate(lines):
            if len(line) > LONGEST_LINE:
                note = f"[{len(line) - 2 * half:,} characters, in .snakemake/log]"
                lines[number] = f"{line[:half]} ... {note} ... {line[-half:]}"
        return "\n".join(lines)

    def format_run_info(self, msg: Mapping[str, Any]) -> str:
        """Return the numbers of jobs as one line."""
        counts = {rule: count for rule, count in msg["stats"].items() if rule != "total"}
        return f"{msg['stats']['total']} jobs: " + ", ".join(f"{count} {rule}" for rule, count in counts.items())

    def format_job_info(self, msg: Mapping[str, Any]) -> str:
        """Return the line of a job's start."""
        wildcards = msg["wildcards"].items()
        # a step is shown as a number
        values = [value.lstrip("0") or "0" if name == "step" else value for name, value in wildcards]
        name = " ".join([msg["rule_name"], *values])
        is_remote = msg["rule_name"] in TRAINING and not msg["local"]
        job = Job(name, msg["shellcmd"] is None, Path(msg["output"][0]) if is_remote else None, time.time())
        self.jobs[msg["jobid"]] = job
        return "" if job.is_target else f"{_clock()} start {name}"

    def format_job_error(self, msg: Mapping[str, Any]) -> str:
        """Return Snakemake's block."""
        self.jobs.pop(msg["jobid"], None)
        return str(super().format_job_error(msg))

    def format_job_finished(self, msg: Mapping[str, Any]) -> str:
        """Keep the line of a job's end for `format_progress`."""
        job = self.jobs.pop(msg["job_id"], None)
        if job is not None:
            seconds = "" if job.is_target else f", {duration(time.time() - job.started)}"
            self._ended.append(f"{_clock()} done  {job.name}{seconds}")
        return ""

    def format_progress(self, msg: Mapping[str, Any]) -> str:
        """Return the lines of the jobs that ended."""
        lines, self._ended = self._ended, []
        return "\n".join(f"{line} ({msg['done']} of {msg['total']})" for line in lines)


def _clock() -> str:
    return time.strftime("%H:%M:%S")


class Terminal(ColorizingTextHandler):
    """Snakemake's handler without its blank lines; it clears the terminal's line before it writes."""

    def __init__(self, nocolor: bool, stream: Any, lines: JobLines) -> None:
        super().__init__(nocolor, stream, lines)
        self.lines = lines
        self._follower: threading.Thread | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record."""
        try:
            text = self.format(record)
            if text and text != "None":
                self._write(self.decorate(record, text) + "\n")
        except BrokenPipeError:
            raise
        except Exception:
            self.handleError(record)
        if self.is_tty and self._follower is None and self._trainings():
            self._follower = threading.Thread(target=self._follow, name="trainings", daemon=True)
            self._follower.start()

    def _write(self, text: str) -> None:
        with self._output_lock:
            self.stream.write(f"{CLEAR if self.is_tty else ''}{text}")
            self.flush()

    def _trainings(self) -> list[Job]:
        return [job for job in list(self.lines.jobs.values()) if job.model is not None]

    def _follow(self) -> None:
        """Show how far the trainings on a cluster are, until the process ends."""
        while True:
            time.sleep(REFRESH_SECONDS)
            with contextlib.suppress(OSError):  # the terminal was closed, or a file vanished
                lines = [(job.name, training_line(job.model, job.started)) for job in self._trainings() if job.model]
                text = " | ".join(f"{name}: {line}" for name, line in lines if line)  # without those in the queue
                self._write(text[: shutil.get_terminal_size().columns - 1])


class LogHandler(LogHandlerBase):
    """The plugin, `--logger caravan`. With --verbose, and for a dry run, the lines are Snakemake's."""

    writes_to_stream = True
    writes_to_file = False
    has_filter = False
    has_formatter = True
    needs_rulegraph = False

    def __post_init__(self) -> None:
        """Choose the lines."""
        settings = self.common_settings
        stream = sys.stdout if settings.stdout else sys.stderr
        kind, lines = (
            (ColorizingTextHandler, DefaultFormatter) if settings.dryrun or settings.verbose else (Terminal, JobLines)
        )
        self.terminal = kind(settings.nocolor, stream, lines(settings.quiet, settings.show_failed_logs))

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record."""
        with contextlib.suppress(BrokenPipeError):  # whoever read the lines has read enough
            self.terminal.emit(record)


def training_line(model: Path, since: float) -> str | None:
    """Return "step 12/100, loss 3.210, 1:02:03 left" of the training that makes a milestone's manifest.

    None if it has no step after `since`, in seconds since 1970: the job waits in the queue, or starts.
    """
    steps = [step for step in _last_steps(model.parents[1] / "train") if step["time"] >= since]
    if not steps:
        return None
    newest, until = steps[-1], model.stem
    if not until.isdigit():  # of epochs: how many steps they have is not known here
        return f"step {newest['step']}{_loss(newest)}"
    text = f"step {newest['step']}/{int(until)}{_loss(newest)}"
    if newest["step"] == int(until):  # the manifest is written after the evaluation
        return f"{text}, validation for {duration(time.time() - newest['time'])}"
    taken = newest["step"] - steps[0]["step"]
    if taken <= 0:
        return text
    return f"{text}, {duration((int(until) - newest['step']) * (newest['time'] - steps[0]['time']) / taken)} left"


def _loss(step: dict[str, Any]) -> str:
    return f", loss {step['loss']:.3f}" if isinstance(step["loss"], float) else ""


def _last_steps(runs: Path) -> list[dict[str, Any]]:
    """Return the last steps of the run directory that changed last."""
    files = {path: path.stat().st_mtime for path in runs.glob("*/metrics.jsonl")}
    if not files:
        return []
    with open(max(files, key=files.__getitem__), "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
        lines = file.read().splitlines()
    steps = []
    for line in lines:
        with contextlib.suppress(ValueError, TypeError, KeyError):  # a line of another kind, or one that is cut off
            entry = json.loads(line)
            if isinstance(entry["step"], int) and isinstance(entry["time"], float) and "loss" in entry:
                steps.append(entry)
    return steps


def duration(seconds: float) -> str:
    """Return a duration as 39 s, 3:07 (minutes) or 2:03:07 (hours)."""
    if seconds < 60:
        return f"{max(0.0, seconds):.0f} s"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
