"""SIGKILL at a change of a file: an audit hook counts opens for writing, renames, deletions and new directories."""

import os
import signal
import sys

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "os.link", "os.symlink", "shutil.rmtree"}
MOST_KILLS = 3  # of one stage, before it may end


def at_change(number, count_file=None):
    """Return a function that makes each process die before its change `number`, or write the number of its changes."""

    def prepare(rank):
        changes = 0

        def hook(event, arguments):
            nonlocal changes
            if event in CHANGES or (event == "open" and _writes(arguments)):
                changes += 1
                if changes == number:
                    os.kill(os.getpid(), signal.SIGKILL)
                if count_file and rank == 0:
                    os.pwrite(count_file, b"%8d" % changes, 0)

        sys.addaudithook(hook)

    return prepare


def _writes(arguments):
    path, _, flags = arguments
    return isinstance(flags, int) and flags & WRITES and not str(path).startswith(("/dev/", "/proc/"))


def attack(finished, scratch, step, rng):
    """Kill a stage up to MOST_KILLS times; its next start must end in the same results, and leave nothing beside them.

    Returns (what was done, how the last start ended, the fault or None).
    """
    place = finished.copy(scratch).before(step)
    moments = []
    for _ in range(rng.randint(1, MOST_KILLS)):
        moment = rng.randint(1, _changes(finished, scratch, step))
        ended = place.run(step, at_change(moment))
        if ended.code >= 0:
            break  # it had fewer changes left to make
        moments.append(moment)
    done = f"{len(moments)} kills, before its changes {', '.join(map(str, moments))}"
    ended = place.run(step)
    if ended.code:
        return done, ended, f"the next start ended with {ended.code}"
    return done, ended, _difference(place.results(), finished.results())


def _changes(finished, scratch, step, counted={}):  # noqa: B006 (a cache)
    """Return the number of changes of the first rank in an undisturbed run."""
    if step not in counted:
        place = finished.copy(scratch.with_name("counted")).before(step)
        with open(scratch.with_name("count"), "w+b") as file:
            place.run(step, at_change(None, file.fileno()))
            counted[step] = int(file.read() or 1)
    return counted[step]


def _difference(found, expected):
    """Return a sentence on the first difference between results, or None."""
    for name in sorted(found.keys() | expected.keys()):
        if name not in expected:
            return f"left {name} behind"
        if name not in found:
            return f"lost {name}"
        if found[name] != expected[name]:
            return f"changed {name}"
    return None
