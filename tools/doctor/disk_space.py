"""Check the disk space for the run: free bytes, quota, number of files."""

from __future__ import annotations

import argparse
import os
from typing import Any

from stages.lib import space
from stages.lib.errors import UserError
from tools.doctor import filesystem
from tools.doctor.rendezvous import Rendezvous
from tools.doctor.result import FAIL, OK, WARNING, Reports, Result

NAME, TIMEOUT_SECONDS = "disk_space", 20.0
MIN_BYTES = 1_000_000_000  # checked without --need: less than the smallest real run writes
MIN_INODES = 10_000


def collect(rendezvous: Rendezvous, arguments: argparse.Namespace) -> dict[str, Any] | None:
    """Return free bytes, free inodes, and why the needed bytes cannot be written; on the first rank only."""
    if rendezvous.rank:
        return None
    place = filesystem.nearest(arguments.directory)
    system = os.statvfs(place)
    need, refused = round(arguments.need * 1e9) if arguments.need else MIN_BYTES, None
    try:
        # each rank writes a share of a checkpoint
        space.require(place, need, "the run" if arguments.need else "the smallest run", rendezvous.world_size)
    except UserError as error:
        refused = str(error)
    inodes = system.f_favail if system.f_files else None  # btrfs and others report none
    return {"place": str(place), "free": system.f_bavail * system.f_frsize, "inodes": inodes, "refused": refused}


def evaluate(reports: Reports, arguments: argparse.Namespace) -> list[Result]:
    """Return one result."""
    report = reports[0]
    if report["refused"]:
        return [Result(FAIL, NAME, f"{report['refused']}: delete files, or request a larger quota")]
    if report["inodes"] is not None and report["inodes"] < MIN_INODES:
        return [Result(WARNING, NAME, f"{report['place']} has only {report['inodes']:,} free inodes: delete files")]
    need = f"{arguments.need:g}" if arguments.need else f"{MIN_BYTES / 1e9:g}"
    text = f"{space.amount(report['free'])} free in {report['place']}, {need} GB could be reserved"
    return [Result(OK, NAME, text if arguments.need else f"{text} (--need GB checks for more)")]
