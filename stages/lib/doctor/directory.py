"""Whether all hosts share the directory of the runs, and it can do what leases and checkpoints need of it."""

import contextlib
import os
import shutil
import time
import uuid
from pathlib import Path

from stages.lib.doctor.findings import FAIL, OK, WARNING, Finding, hosts, listed
from stages.lib.errors import UserError

NAME, SECONDS = "directory", 60.0
SIGHT_SECONDS = 20.0  # how late a file may show on another host; a profile's latency-wait is 60
WRITTEN_BYTES, WRITE_SECONDS = 64_000_000, 10.0
SLOW = 50e6  # bytes a second: a checkpoint of a model of 1 B parameters, 12 GB, then takes 4 minutes
RENAME_SECONDS = 0.5
CONTENT = "written by the doctor\n" * 200  # longer than what fits into an inode


def nearest(directory):
    """The directory itself, or the nearest one above that is there: where it would be made. Absolute."""
    place = Path(directory).absolute()
    while not place.is_dir():
        place = place.parent
    return place


def look(meeting, arguments):
    """What this rank sees of a scratch directory that the first rank makes and, in the end, deletes."""
    if meeting.rank:
        return _look_from_afar(meeting)
    scratch = nearest(arguments.directory) / f".doctor.{uuid.uuid4().hex}"
    try:
        scratch.mkdir()
        try:
            speed = _write_speed(scratch / "speed")
            (scratch / "first").write_text(CONTENT, encoding="ascii")
            meeting.say("scratch", str(scratch))
            return {"place": str(scratch.parent), "speed": speed} | _look_at_home(meeting, scratch)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    except OSError as error:
        meeting.say("scratch", None)
        raise UserError(f"{scratch.parent} must be a directory that can be written: {error.strerror}") from None


def _look_at_home(meeting, scratch):
    others = [rank for rank in meeting.leaders if rank]
    mine = {"sees": 0.0} | _link(scratch, 0)
    (scratch / "renamed").write_text(CONTENT, encoding="ascii")
    meeting.say("rename", True)
    end = time.monotonic() + RENAME_SECONDS
    mine["reads"], mine["torn"], mine["lost"] = 0, 0, 0
    while time.monotonic() < end:
        (scratch / "renaming").write_text(CONTENT, encoding="ascii")
        os.replace(scratch / "renaming", scratch / "renamed")
        _read(scratch / "renamed", mine)
    unseen = []
    for rank in others:
        told = meeting.hear(f"looked {rank}", SIGHT_SECONDS + SECONDS / 2)
        if told["sees"] is not None and _sight(scratch / f"from {rank}") is None:
            unseen.append(rank)
    for rank in set(range(1, meeting.world_size)) - set(others) - set(meeting.missing):
        meeting.hear(f"looked {rank}", SIGHT_SECONDS)
    return mine | {"unseen": [meeting.leaders[rank] for rank in unseen]}


def _look_from_afar(meeting):
    scratch = meeting.hear("scratch", SECONDS / 2)
    found = {"sees": None}
    if scratch is not None:
        scratch = Path(scratch)
        found["sees"] = _sight(scratch / "first")
        if found["sees"] is not None and meeting.leads:
            found |= _work_from_afar(meeting, scratch)
    meeting.say(f"looked {meeting.rank}", found)
    return found


def _work_from_afar(meeting, scratch):
    found = _link(scratch, meeting.rank) | {"reads": 0, "torn": 0, "lost": 0}
    meeting.hear("rename", SIGHT_SECONDS)
    if _sight(scratch / "renamed") is not None:
        end = time.monotonic() + RENAME_SECONDS
        while time.monotonic() < end:
            _read(scratch / "renamed", found)
    with contextlib.suppress(OSError):  # the first rank will miss it
        (scratch / f"from {meeting.rank}").write_text(CONTENT, encoding="ascii")
    return found


def _sight(path):
    """Seconds until the file shows its content here; None where it does not."""
    begun = time.monotonic()
    while True:
        with contextlib.suppress(OSError, ValueError):
            if path.read_text(encoding="ascii") == CONTENT:
                return time.monotonic() - begun
        if time.monotonic() - begun > SIGHT_SECONDS:
            return None
        time.sleep(0.1)


def _link(scratch, rank):
    """Take what a lease takes: a hard link to a name that only one may get."""
    own = scratch / f"own {rank}"
    try:
        own.write_text(CONTENT, encoding="ascii")
        os.link(own, scratch / "lease")
        return {"won": True, "link": None}
    except FileExistsError:
        return {"won": False, "link": None}
    except OSError as error:
        return {"won": False, "link": error.strerror}


def _read(path, found):
    """Read a file that is being replaced, and count what came of it."""
    found["reads"] += 1
    try:
        found["torn"] += path.read_text(encoding="ascii") != CONTENT
    except OSError:
        found["lost"] += 1


def _write_speed(path):
    """Bytes a second of a new file, down to the disk."""
    block = os.urandom(WRITTEN_BYTES // 16)  # nothing that a file system could compress
    begun, written = time.monotonic(), 0
    with open(path, "wb", buffering=0) as file:
        while written < WRITTEN_BYTES and time.monotonic() - begun < WRITE_SECONDS:
            written += file.write(block)
            os.fsync(file.fileno())
    return written / max(time.monotonic() - begun, 1e-6)


def judge(facts, arguments):
    """The finding."""
    first = facts[0]
    place = first["place"]
    blind = hosts(facts, lambda found: found["sees"] is None)
    if blind:
        text = f"{place} of {first['host']} is not seen by {blind}: give --directory on a file system that all share"
        return [Finding(FAIL, NAME, text)]
    if first["unseen"]:
        text = f"{place}: what {listed(first['unseen'])} wrote is not seen by {first['host']}: is it mounted read-only?"
        return [Finding(FAIL, NAME, text)]
    workers = {rank: found for rank, found in facts.items() if "won" in found}
    return [Finding(*_on_features(workers, place) or _on_speed(facts, place, arguments))]


def _on_features(facts, place):
    if refused := {found["link"]: rank for rank, found in facts.items() if found["link"]}:
        where = hosts(facts, lambda found: found["link"])
        text = f"{place} makes no hard links on {where} ({', '.join(refused)}), which a lease needs: use another"
        return FAIL, NAME, text
    winners = hosts(facts, lambda found: found["won"])
    if sum(found["won"] for found in facts.values()) != 1:
        text = f"{place} gave one name to {winners or 'nobody'}, so that two could train in one directory: use another"
        return FAIL, NAME, text
    if any(found["torn"] for found in facts.values()):
        where = hosts(facts, lambda found: found["torn"])
        return FAIL, NAME, f"{place} shows half a file on {where} while it is being replaced: use another"
    if any(found["lost"] for found in facts.values()):
        where = hosts(facts, lambda found: found["lost"])
        text = (
            f"{place} hides a file from {where} for a moment while it is being replaced: a start may fail, and must be"
        )
        return WARNING, NAME, f"{text} repeated"
    return None


def _on_speed(facts, place, arguments):
    speed = facts[0]["speed"]
    latest = max(found["sees"] for found in facts.values())
    text = f"{place} writes {speed / 1e6:,.0f} MB/s"
    if speed < SLOW:
        return WARNING, NAME, f"{text}: 12 GB, the state of 1 B parameters, take {12e9 / speed / 60:.0f} minutes"
    shared = len({found["host"] for found in facts.values()}) > 1
    text += ", hard links and renames work" + (f", seen by all hosts after {latest:.1f} s" if shared else "")
    note = "" if Path(place) == arguments.directory.absolute() else f" ({arguments.directory} is not there yet)"
    return OK, NAME, text + note
