"""Whether the file system of the run has room: free space, quota, number of files."""

import os

from stages.lib import space
from stages.lib.doctor import directory
from stages.lib.doctor.findings import FAIL, OK, WARNING, Finding
from stages.lib.errors import UserError

NAME, SECONDS = "room", 20.0
LEAST_BYTES = 1_000_000_000  # asked for without --need: less than the smallest real run writes
LEAST_FILES = 10_000


def look(meeting, arguments):
    """Free space in bytes, free names, and why what is needed cannot be written; the first rank asks for all."""
    if meeting.rank:
        return None
    place = directory.nearest(arguments.directory)
    system = os.statvfs(place)
    need, refused = round(arguments.need * 1e9) if arguments.need else LEAST_BYTES, None
    try:
        # each rank writes a share of a checkpoint
        space.require(place, need, "the run" if arguments.need else "the smallest run", meeting.world_size)
    except UserError as error:
        refused = str(error)
    names = system.f_favail if system.f_files else None  # btrfs and others have no such number
    return {"place": str(place), "free": system.f_bavail * system.f_frsize, "names": names, "refused": refused}


def judge(facts, arguments):
    """The finding."""
    found = facts[0]
    if found["refused"]:
        return [Finding(FAIL, NAME, f"{found['refused']}: make room, or ask for a larger quota")]
    if found["names"] is not None and found["names"] < LEAST_FILES:
        return [
            Finding(WARNING, NAME, f"{found['place']} has room for {found['names']:,} more files only: delete some")
        ]
    asked = f"{arguments.need:g}" if arguments.need else f"{LEAST_BYTES / 1e9:g}"
    text = f"{space.amount(found['free'])} free in {found['place']}, of which {asked} GB could be had now"
    return [Finding(OK, NAME, text if arguments.need else f"{text} (--need GB asks for more)")]
