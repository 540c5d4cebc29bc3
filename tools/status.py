"""Where every run stands: step, speed, time left, last checkpoint, why it stopped, milestones and scores.

    python -m tools.status --results results
    python -m tools.status --results results --unused

--unused lists the run directories that no milestone refers to, with their sizes; nothing is deleted. A run that has not
reached its first milestone is among them: name the digests to --keep.
"""

import statistics
import sys
import time
from pathlib import Path

from stages.lib import files, stage
from stages.lib.errors import UserError
from stages.lib.report import comparison
from stages.lib.run_directory import history, journal, lease
from stages.lib.training.faults import stop_requests

RECENT = 20
"""Steps over which speed and slowest rank are told."""

SLOW = 1.2
"""A rank that takes so many times the median step is named."""


def run(arguments):
    """Print what was asked for."""
    if not arguments.results.is_dir():
        raise UserError(f"--results {arguments.results} must be a directory")
    directories = sorted(path for path in arguments.results.glob("runs/*/train/*") if path.is_dir())
    if arguments.unused:
        print_unused(directories, arguments.keep)
        return
    for name in sorted(path.name for path in arguments.results.glob("runs/*") if path.is_dir()):
        own = [path for path in directories if path.parents[1].name == name]
        print_run(arguments.results / "runs" / name, own)
    if not directories:
        print(f"no run has begun in {arguments.results}")


def print_run(home, directories):
    """Print what there is to say of one run: of each of its run directories, then its milestones' scores."""
    models = [made for made in map(_read, sorted(home.glob("models/*.json"))) if made]
    for directory in directories:
        own = [made for made in models if Path(made["record"].get("run_directory", "")).name == directory.name]
        note = "" if own else " (no milestone yet)"
        print(f"{home.name} in {directory}{note}")
        for label, text in describe(directory, own):
            print(f"  {label:<12} {text}")
    for step in sorted(path.name for path in home.glob("eval/*") if path.is_dir()):
        for path in sorted(home.glob(f"eval/{step}/*.json")):
            print(f"  {f'scores {int(step)}':<12} {path.stem}: {_scores(path)}")


def describe(directory, models):
    """(label, text) lines on a run directory; `models`: the manifests of its milestones, as data.

    What there is nothing to say of has no line.
    """
    events = journal.read(directory / "events.jsonl")
    entries = list(history.entries(directory, events, history.TAIL))
    steps = [entry for entry in entries if "validation" not in entry]
    validation = next((entry for entry in reversed(entries) if "validation" in entry), None)
    total = total_steps(events, models)
    lines = {
        "step": _progress(steps, total),
        "held out": validation and _validation(validation),
        "speed": steps and _speed(steps, total),
        "slowest rank": _slowest(steps[-RECENT:]),
        "trouble": ", ".join(history.troubles(events)),
        "last hang": _last_hang(events),
        "checkpoint": _last_checkpoint(directory),
        "state": _state(directory, events),
        "milestones": ", ".join(f"{made['identity']['step']:,}" for made in models) or "none",
    }
    return [(label, text) for label, text in lines.items() if text]


def total_steps(events, models):
    """The number of steps of the whole run by its newest word on it; None where nobody said."""
    said = [event["steps"] for event in events if "steps" in event]
    said = said or [made["record"]["horizon"]["steps"] for made in models if "horizon" in made["record"]]
    return said[-1] if said else None


def _progress(steps, total):
    if not steps:
        return "none yet" + (f" of {total:,}" if total else "")
    newest = steps[-1]
    share = f" of {total:,} ({newest['step'] / total:.0%})" if total else ""
    loss = "loss not finite" if newest["loss"] is None else f"loss {newest['loss']:.4f}"
    skipped = ", skipped" if newest.get("skipped") else ""
    return f"{newest['step']:,}{share}, {newest['tokens']:,} tokens, {loss}{skipped}"


def _validation(entry):
    losses = ", ".join(f"{source} {scores['loss']:.4f}" for source, scores in entry["validation"].items())
    return f"loss {losses} at step {entry['step']:,}"


def _speed(steps, total):
    recent = sorted(steps[-RECENT:], key=lambda entry: entry["tokens_per_second"])
    usual, newest = recent[len(recent) // 2], steps[-1]
    text = f"{usual['tokens_per_second']:,.0f} tokens/s"
    if isinstance(usual.get("mfu"), float):  # else "n/a": the device's peak is not known
        text += f", MFU {usual['mfu']:.1%}"
    # saving and evaluation take time as well
    rate = min(usual["tokens_per_second"], newest.get("tokens_per_second_overall", float("inf")))
    if total and newest["step"] and rate and newest["step"] < total:
        left = newest["tokens"] / newest["step"] * (total - newest["step"]) / rate
        text += f", {journal.duration(left)} left"
    return text


def _slowest(steps):
    """The host of the rank that holds the others up, where one does."""
    told = [entry["ranks"] for entry in steps if entry.get("ranks", {}).get("median")]
    if not told:
        return None
    ratio = statistics.median(ranks["max"] / ranks["median"] for ranks in told)
    host = statistics.mode(ranks["slowest"] for ranks in told)
    return f"{host}, works {ratio:.1f} times as long as the median rank" if ratio > SLOW else None


def _last_hang(events):
    hangs = [event for event in events if event["event"] == "hang"]
    if not hangs:
        return None
    last = hangs[-1]
    return f"at step {last['step']:,}, {_ago(last['time'])}; stacks of the ranks in hang/{last['stamp']}-rank*.txt"


def _last_checkpoint(directory):
    complete = [path.parent for path in directory.glob("checkpoints/*/commit.json") if _is_complete(path)]
    if not complete:
        return "none"
    newest = max(complete)
    return f"checkpoints/{newest.name} ({_ago(newest.stat().st_mtime)})"


def _is_complete(commit):
    """Whether all files of a commit marker are there in their sizes (`checkpoint.read_commit`, but without torch)."""
    made = _read(commit)
    if made is None:
        return False
    paths = {commit.parent / name: file["bytes"] for name, file in made["files"].items()}
    return all(path.exists() and path.stat().st_size == size for path, size in paths.items())


def _state(directory, events):
    if holder := lease.holder(directory):
        return f"training now: {holder}"
    if marker := stop_requests.read_marker(directory):
        saved = f"saved at step {marker['step']:,}" if marker["step"] else "before its first checkpoint"
        return f"stopped by {marker['reason']}, {saved}; start it again and it goes on"
    return _last_event(events)


def _last_event(events):
    if not events:
        return "not begun"
    last = events[-1]
    at = f"at step {last['step']:,}"
    if last["event"] == "finish":
        return f"reached its milestone, step {last['step']:,}"
    if last["event"] == "stop":
        return f"stopped {at}: {last.get('reason', 'no reason given').removesuffix(': ')}"
    if last["event"] == "hang":
        noticed = f"noticed after {journal.duration(last['seconds'])} by rank {last['rank']} on {last['host']}"
        return f"hung {at}, {noticed}; start it again and it goes on"
    return f"died after its last word, {last['event']} {at}: killed, or its node was lost"


def _scores(path):
    made = _read(path)
    if made is None:
        return "not readable"
    metrics = {}
    for task, scores in made["identity"]["results"].items():
        name = comparison.main_metric(scores)
        metrics[task if name == "bits_per_byte" else f"{task} {name}"] = scores[name]["value"]
    return ", ".join(f"{task} {'?' if value is None else format(value, '.3f')}" for task, value in metrics.items())


def print_unused(directories, keep):
    """List run directories that no milestone refers to, nobody trains in, and `keep` (digests) does not name."""
    total = 0
    for directory in directories:
        models = [made for made in map(_read, directory.parents[1].glob("models/*.json")) if made]
        used = {Path(made["record"].get("run_directory", "")).name for made in models}
        kept = any(digest.startswith(directory.name) for digest in keep)
        if directory.name in used or kept or lease.holder(directory):
            continue
        size = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
        total += size
        print(f"{size / 1e6:12,.1f} MB  {directory}")
    print(f"{total / 1e6:12,.1f} MB  in run directories that no milestone refers to")


def _read(path):
    """A JSON file, or None where it vanished or is being written: a status shall not fail on a run that is going on."""
    try:
        return files.read_json(path)
    except UserError:
        return None


def _ago(moment):
    return f"{journal.duration(max(0, time.time() - moment))} ago"


def main(argv=None):
    """Run the stage; returns its exit code."""
    parser = stage.parser("tools.status", __doc__)
    parser.add_argument("--results", type=Path, default=Path("results"), metavar="DIR", help="default: results")
    parser.add_argument("--unused", action="store_true", help="list run directories that no milestone refers to")
    parser.add_argument("--keep", nargs="*", default=[], metavar="DIGEST", help="with --unused: leave these out")
    return stage.execute(parser, run, argv)


if __name__ == "__main__":
    sys.exit(main())
