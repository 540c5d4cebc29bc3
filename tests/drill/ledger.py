"""Samples and losses in a run's metrics, and their comparison with an undisturbed run."""

import json


def read(results, position=0):
    """Return the training entries of the metrics under `results` from a byte on, and the byte after the last line.

    A line that a kill cut is skipped, as by readers of the metrics.
    """
    path = next(iter((results / "train").glob("*/metrics.jsonl")), None)
    if path is None:
        return [], 0
    with open(path, "rb") as file:
        file.seek(position)
        text = file.read()
    whole = text[: text.rfind(b"\n") + 1]
    return [entry for entry in map(_entry, whole.splitlines()) if "loss" in entry], position + len(whole)


def _entry(line):
    try:
        return json.loads(line)
    except ValueError:
        return {}


def last_entries(entries):
    """Return {step: its last entry}, which counts if a step was trained more than once."""
    return {entry["step"]: entry for entry in entries}


def faults(entries, steps, global_batch_size):
    """Yield a sentence per fault: each sample must be trained once, in order, and no step may be missing."""
    last = last_entries(entries)
    for step in range(1, steps + 1):
        samples = [(step - 1) * global_batch_size, step * global_batch_size]
        if step not in last:
            yield f"no entry of step {step}"
        elif last[step]["samples"] != samples:
            yield f"step {step} trained samples {last[step]['samples']}, not {samples}"
    for step in sorted(set(last) - set(range(1, steps + 1))):
        yield f"step {step} was trained, beyond the last"
    yield from _gaps(entries)


def _gaps(entries):
    reached = 0
    for entry in entries:
        if entry["step"] > reached + 1:
            yield f"step {entry['step']} was trained when {reached} was the last before it"
        reached = max(reached, entry["step"])


def difference(entries, undisturbed, name):
    """Return the largest difference of a number from the undisturbed run's, over all entries, also repeated ones."""
    expected = last_entries(undisturbed)
    return max(abs(entry[name] - expected[entry["step"]][name]) for entry in entries)
