"""What a run directory tells of a training's steps: metrics.jsonl without what a rollback took back, and events.jsonl.

A step may be written several times: by a training that was killed and took it again, and by one that went back. Then
the last line of a step counts. Lines of steps from which a rollback went back are no part of the training at all, also
where it has not come so far again.
"""

import json

TAIL = 16 << 20
"""Bytes at the end of metrics.jsonl that hold about 20,000 steps."""


def entries(directory, events, last_bytes=None):
    """The entries of metrics.jsonl, in the order in which they were written; without those that a rollback took back.

    `events`: those of the same directory. `last_bytes`: look at no more than the end of the file. Lines that a kill cut
    are left out.
    """
    rollbacks = [event for event in events if event["event"] == "rollback"]
    gone = None  # the last step that was taken back: an evaluation after it was of its weights
    for entry in _lines(directory / "metrics.jsonl", last_bytes):
        if "validation" not in entry:
            gone = entry["step"] if _is_taken_back(entry, rollbacks) else None
        if entry["step"] != gone:
            yield entry


def _is_taken_back(entry, rollbacks):
    # By the samples too: clocks of several hosts differ, and after a rollback the training reads later ones.
    first = entry.get("samples", [-1])[0]  # -1: of a training before there were rollbacks
    return any(
        entry["step"] > rollback["step"]
        and rollback["samples"][0] <= first < rollback["samples"][1]
        and entry["time"] <= rollback["time"]
        for rollback in rollbacks
    )


def _lines(path, last_bytes):
    if not path.exists():
        return
    with open(path, "rb") as file:
        if last_bytes is not None and file.seek(0, 2) > last_bytes:
            file.seek(-last_bytes, 2)
            file.readline()  # the end of a line
        else:
            file.seek(0)
        for line in file:
            try:
                yield json.loads(line)
            except ValueError:
                continue  # cut by a kill


def is_good(entry):
    """Whether an entry is of a step that changed the weights."""
    return entry["loss"] is not None and not entry.get("skipped")


def troubles(events):
    """What went wrong in a training, in words: ["3 steps skipped", "1 rollback"]; [] for nothing.

    A step that was skipped, and skipped again after a kill, is one; so is a rollback.
    """
    counts = {
        "step skipped": len({_place(event) for event in events if event["event"] == "skip"}),
        "rollback": len({_place(event) for event in events if event["event"] == "rollback"}),
        "hang": sum(event["event"] == "hang" for event in events),
    }
    return [f"{count:,} {_plural(name, count)}" for name, count in counts.items() if count]


def _place(event):
    return event["step"], *event["samples"]


def _plural(name, count):
    first, _, rest = name.partition(" ")
    return f"{first}{'s' * (count > 1)} {rest}".rstrip()
