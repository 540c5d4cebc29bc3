"""Print the state of every run: step, speed, time left, last checkpoint, why it stopped, milestones and scores.

Jobs of the same workflow that run or wait in the queue of Slurm follow.

    python -m tools.status --results results
    python -m tools.status --results results --unused

--unused lists the run directories that no milestone refers to, with their sizes; it deletes nothing. A run that has not
reached its first milestone is among them: exclude its digest with --keep.
"""

from __future__ import annotations

import argparse
import getpass
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stages.lib import files, manifest, stage
from stages.lib.checkpoints.commit import COMMIT, read_commit
from stages.lib.errors import UserError
from stages.lib.manifest import Manifest
from stages.lib.report import comparison
from stages.lib.run_directory import crashes, history, lease
from stages.lib.run_directory.events import read_events
from stages.lib.training.callbacks.progress import format_duration
from stages.lib.training.faults import stop_requests

QUEUE_SECONDS = 10
"""Longest wait for squeue."""

RECENT = 20
"""Number of last steps over which the speed and the slowest rank are computed."""

SLOW = 1.2
"""A rank is reported as slow if it takes more than this multiple of the median rank's time."""


def run(arguments: argparse.Namespace) -> None:
    """Print the state of all runs, or the unused run directories."""
    if not arguments.results.is_dir():
        raise UserError(f"--results must be a directory, got {arguments.results}")
    directories = sorted(path for path in arguments.results.glob("runs/*/train/*") if path.is_dir())
    if arguments.unused:
        print_unused(directories, arguments.keep)
        return
    for name in sorted(path.name for path in arguments.results.glob("runs/*") if path.is_dir()):
        own = [path for path in directories if path.parents[1].name == name]
        print_run(arguments.results / "runs" / name, own)
    if not directories:
        print(f"no run has started in {arguments.results}")
    if jobs := queue(arguments.results.resolve().parent):
        print("in the queue of Slurm")
        for job in jobs:
            print(f"  {job}")


def queue(directory: Path) -> list[str]:
    """Return one line per Slurm job of this user that was submitted in a directory; [] without Slurm."""
    form = "%i|%j|%T|%M|%l|%R|%Z"
    command = ["squeue", "--noheader", "--user", getpass.getuser(), "--format", form]
    try:
        text = subprocess.run(command, capture_output=True, text=True, timeout=QUEUE_SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [line.split("|", form.count("|")) for line in text.splitlines() if line.count("|") >= form.count("|")]
    return [
        f"{job:<12} {name}: {state.lower()}, {elapsed} of {limit}, {reason}"
        for job, name, state, elapsed, limit, reason, place in rows
        if place == str(directory)
    ]


def print_run(home: Path, directories: Sequence[Path]) -> None:
    """Print the state of each run directory of a run, then the scores of its milestones."""
    models = [made for path in sorted(home.glob("models/*.json")) if (made := _read(path, *manifest.TRAINING))]
    for directory in directories:
        own = [made for made in models if _run_directory_name(made) == directory.name]
        note = "" if own else " (no milestone yet)"
        print(f"{home.name} in {directory}{note}")
        for label, text in describe(directory, own):
            print(f"  {label:<12} {text}")
    for name in sorted(path.name for path in home.glob("eval/*") if path.is_dir()):
        label = f"scores {name.lstrip('0')}"
        for path in sorted(home.glob(f"eval/{name}/*.json")):
            print(f"  {label:<12} {path.stem}: {_scores(path)}")


def describe(directory: Path, models: Sequence[Manifest]) -> list[tuple[str, str]]:
    """Return (label, text) lines on a run directory, without empty ones.

    `models`: the manifests of its milestones.
    """
    events = read_events(directory)
    entries = list(history.entries(directory, events, history.TAIL))
    steps = [entry for entry in entries if "loss" in entry]
    validation = next((entry for entry in reversed(entries) if "validation" in entry), None)
    total = total_steps(events, models)
    lines = {
        "step": _progress(steps, total),
        "validation": validation and _validation(validation),
        "speed": steps and _speed(steps, total),
        "slowest rank": _slowest_rank(steps[-RECENT:]),
        "problems": ", ".join(history.troubles(events)),
        "last hang": _last_hang(events),
        "checkpoint": _last_checkpoint(directory),
        "state": _state(directory, events),
        "milestones": ", ".join(f"{made.identity['step']:,}" for made in models) or "none",
    }
    return [(label, str(text)) for label, text in lines.items() if text]


def total_steps(events: Sequence[dict[str, Any]], models: Sequence[Manifest]) -> int | None:
    """Return the number of steps of the whole run, from the newest event or manifest that has it; None if none has."""
    numbers = [event["steps"] for event in events if "steps" in event]
    numbers = numbers or [made.record["horizon"]["steps"] for made in models if "horizon" in made.record]
    return numbers[-1] if numbers else None


def _progress(steps: Sequence[dict[str, Any]], total: int | None) -> str:
    if not steps:
        return "none yet" + (f" of {total:,}" if total else "")
    newest = steps[-1]
    share = f" of {total:,} ({newest['step'] / total:.0%})" if total else ""
    loss = "loss not finite" if newest["loss"] is None else f"loss {newest['loss']:.4f}"
    skipped = ", skipped" if newest.get("skipped") else ""
    return f"{newest['step']:,}{share}, {newest['tokens']:,} tokens, {loss}{skipped}"


def _validation(entry: dict[str, Any]) -> str:
    losses = ", ".join(f"{source} {scores['loss']:.4f}" for source, scores in entry["validation"].items())
    return f"loss {losses} at step {entry['step']:,}"


def _speed(steps: Sequence[dict[str, Any]], total: int | None) -> str:
    timed = [entry for entry in steps[-RECENT:] if "tokens_per_second" in entry]
    if not timed:
        return ""
    recent = sorted(timed, key=lambda entry: entry["tokens_per_second"])
    median, newest = recent[len(recent) // 2], steps[-1]
    text = f"{median['tokens_per_second']:,.0f} tokens/s"
    if isinstance(median.get("mfu"), float):  # "n/a" if the device's peak is unknown
        text += f", MFU {median['mfu']:.1%}"
    # the overall speed includes saving and evaluation
    rate = min(median["tokens_per_second"], newest.get("tokens_per_second_overall", float("inf")))
    if total and newest["step"] and rate and newest["step"] < total:
        left = newest["tokens"] / newest["step"] * (total - newest["step"]) / rate
        text += f", {format_duration(left)} left"
    return text


def _slowest_rank(steps: Sequence[dict[str, Any]]) -> str | None:
    """Return the host of the rank that delays the others, None if none does."""
    timed = [entry["ranks"] for entry in steps if entry.get("ranks", {}).get("median")]
    if not timed:
        return None
    ratio = statistics.median(ranks["max"] / ranks["median"] for ranks in timed)
    host = statistics.mode(ranks["slowest"] for ranks in timed)
    return f"on {host}, {ratio:.1f} times the median rank's time per step" if ratio > SLOW else None


def _last_hang(events: Sequence[dict[str, Any]]) -> str | None:
    hangs = [event for event in events if event["event"] == "hang"]
    if not hangs:
        return None
    last = hangs[-1]
    return f"at step {last['step']:,}, {_ago(last['time'])}; stacks of the ranks in hang/{last['stamp']}-rank*.txt"


def _last_checkpoint(directory: Path) -> str:
    complete = [path.parent for path in directory.glob(f"checkpoints/[0-9]*/{COMMIT}") if _is_complete(path.parent)]
    if not complete:
        return "none"
    newest = max(complete)
    return f"checkpoints/{newest.name} ({_ago(newest.stat().st_mtime)})"


def _is_complete(checkpoint: Path) -> bool:
    """Return True if the commit marker of a checkpoint is valid and all its files have their sizes."""
    try:
        read_commit(checkpoint)
    except UserError:
        return False
    return True


def _state(directory: Path, events: Sequence[dict[str, Any]]) -> str:
    if holder := lease.holder(directory):
        return f"training now: {holder}"
    if marker := stop_requests.read_marker(directory):
        saved = f"saved at step {marker['step']:,}" if marker["step"] else "before its first checkpoint"
        return f"stopped by {marker['reason']}, {saved}; restart to resume"
    return _last_event(events)


def _last_event(events: Sequence[dict[str, Any]]) -> str:
    if not events:
        return "not started"
    last = events[-1]
    at = f"at step {last['step']:,}"
    if last["event"] == "finish":
        return f"reached its milestone, step {last['step']:,}"
    if last["event"] == "stop" and last.get("preempted"):
        return last["reason"]
    if last["event"] == "stop":
        return f"stopped {at}: {last['reason'].removesuffix(': ')}"
    if last["event"] == "hang":
        detected = f"detected after {format_duration(last['seconds'])} by rank {last['rank']} on {last['host']}"
        return f"hung {at}, {detected}; restart to resume"
    return f"{crashes.describe_kill(last)}; restart to resume"


def _scores(path: Path) -> str:
    made = _read(path, "evaluate")
    if made is None:
        return "not readable"
    metrics = {}
    for task, scores in made.identity["results"].items():
        name = comparison.main_metric(scores)
        metrics[task if name == "bits_per_byte" else f"{task} {name}"] = scores[name]["value"]
    return ", ".join(f"{task} {'?' if value is None else format(value, '.3f')}" for task, value in metrics.items())


def print_unused(directories: Sequence[Path], keep: Sequence[str]) -> None:
    """List run directories that no milestone refers to, without those in training and those of the digests `keep`."""
    total = 0
    for directory in directories:
        found = (_read(path, *manifest.TRAINING) for path in directory.parents[1].glob("models/*.json"))
        used = {_run_directory_name(made) for made in found if made}
        kept = any(digest.startswith(directory.name) for digest in keep)
        if directory.name in used or kept or lease.holder(directory):
            continue
        size = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
        total += size
        print(f"{size / 1e6:12,.1f} MB  {directory}")
    print(f"{total / 1e6:12,.1f} MB  in run directories that no milestone refers to")


def _run_directory_name(model: Manifest) -> str:
    return Path(model.record.get("run_directory", "")).name


def _read(path: Path, *stages: str) -> Manifest | None:
    """Return the manifest of one of `stages`; None if it vanished, as may happen during a run, or is not JSON.

    Raises UserError if it is another manifest, or changed since it was written.
    """
    try:
        data = files.read_json(path)
    except UserError:
        return None
    return manifest.parse(path, data, *stages)


def _ago(moment: float) -> str:
    return f"{format_duration(max(0, time.time() - moment))} ago"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool; return its exit code."""
    parser = stage.parser("tools.status", __doc__)
    parser.add_argument("--results", type=Path, default=Path("results"), metavar="DIR", help="default: results")
    parser.add_argument("--unused", action="store_true", help="list run directories that no milestone refers to")
    parser.add_argument("--keep", nargs="*", default=[], metavar="DIGEST", help="with --unused: exclude these")
    return stage.execute(parser, run, argv)


if __name__ == "__main__":
    sys.exit(main())
