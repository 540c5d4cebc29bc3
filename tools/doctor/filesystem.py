"""The checks of the directory of the runs: shared by all hosts, fit for leases and checkpoints, with enough space."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import time
import uuid
from pathlib import Path
from typing import Any

from stages.lib import space
from stages.lib.errors import UserError
from tools.doctor.runner import FAIL, OK, WARNING, Check, Finding, Rendezvous, Reports, host_names, join_names

TIMEOUT_SECONDS = 60.0
VISIBLE_SECONDS = 20.0  # longest time until a file is visible on another host; a profile's latency-wait is 60
WRITTEN_BYTES, WRITE_SECONDS = 64_000_000, 10.0
SLOW = 50e6  # bytes per second: a checkpoint of a model of 1 B parameters, 12 GB, then takes 4 minutes
RENAME_SECONDS = 0.5
CONTENT = "written by the doctor\n" * 200  # longer than what fits into an inode
MIN_BYTES = 1_000_000_000  # checked without --need: less than the smallest real run writes
MIN_INODES = 10_000


def nearest(directory: Path) -> Path:
    """Return the absolute path of the directory, or of its nearest ancestor that exists."""
    place = Path(directory).absolute()
    while not place.is_dir():
        place = place.parent
    return place


def collect(rendezvous: Rendezvous, arguments: argparse.Namespace) -> dict[str, Any]:
    """Test a scratch directory that the first rank creates and deletes; return what this rank found."""
    if rendezvous.rank:
        return _test_on_other_rank(rendezvous)
    scratch = nearest(arguments.directory) / f".doctor.{uuid.uuid4().hex}"
    try:
        scratch.mkdir()
        try:
            return {"place": str(scratch.parent)} | _test_on_first_rank(rendezvous, scratch)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    except OSError as error:
        rendezvous.set("scratch", None)
        raise UserError(f"{scratch.parent} must be a writable directory: {error.strerror}") from None


def _test_on_first_rank(rendezvous: Rendezvous, scratch: Path) -> dict[str, Any]:
    report = {"visible": 0.0, "speed": _write_speed(scratch / "speed")}
    (scratch / "first").write_text(CONTENT, encoding="ascii")
    rendezvous.set("scratch", str(scratch))
    report |= _try_link(scratch, 0)
    (scratch / "renamed").write_text(CONTENT, encoding="ascii")
    rendezvous.set("rename", True)
    end = time.monotonic() + RENAME_SECONDS
    while time.monotonic() < end:
        (scratch / "renaming").write_text(CONTENT, encoding="ascii")
        os.replace(scratch / "renaming", scratch / "renamed")
        _read_during_rename(scratch / "renamed", report)
    unseen, leaders = [], {rank: host for rank, host in rendezvous.leaders.items() if rank}
    for rank, host in leaders.items():
        answer = rendezvous.get(f"tested {rank}", VISIBLE_SECONDS + TIMEOUT_SECONDS / 2)
        if answer["visible"] is not None and _seconds_until_visible(scratch / f"from {rank}") is None:
            unseen.append(host)
    for rank in set(range(1, rendezvous.world_size)) - set(leaders) - set(rendezvous.missing):
        rendezvous.get(f"tested {rank}", VISIBLE_SECONDS)
    return report | {"unseen": unseen}


def _test_on_other_rank(rendezvous: Rendezvous) -> dict[str, Any]:
    name = rendezvous.get("scratch", TIMEOUT_SECONDS / 2)
    scratch = Path(name or ".")
    report = {"visible": None if name is None else _seconds_until_visible(scratch / "first")}
    if report["visible"] is not None and rendezvous.is_leader:
        report |= _try_link(scratch, rendezvous.rank)
        rendezvous.get("rename", VISIBLE_SECONDS)
        if _seconds_until_visible(scratch / "renamed") is not None:
            end = time.monotonic() + RENAME_SECONDS
            while time.monotonic() < end:
                _read_during_rename(scratch / "renamed", report)
        with contextlib.suppress(OSError):  # the first rank reports it as not visible
            (scratch / f"from {rendezvous.rank}").write_text(CONTENT, encoding="ascii")
    rendezvous.set(f"tested {rendezvous.rank}", report)
    return report


def _seconds_until_visible(path: Path) -> float | None:
    """Return the seconds until this host sees the file's content; None after VISIBLE_SECONDS."""
    begin = time.monotonic()
    while True:
        with contextlib.suppress(OSError, ValueError):
            if path.read_text(encoding="ascii") == CONTENT:
                return time.monotonic() - begin
        if time.monotonic() - begin > VISIBLE_SECONDS:
            return None
        time.sleep(0.1)


def _try_link(scratch: Path, rank: int) -> dict[str, Any]:
    """Create a hard link as a lease does (only one rank may succeed), and begin to count reads during renames."""
    own, link = scratch / f"own {rank}", None
    try:
        own.write_text(CONTENT, encoding="ascii")
        os.link(own, scratch / "lease")
        has_lease = True
    except OSError as error:
        has_lease = False
        link = None if isinstance(error, FileExistsError) else error.strerror
    return {"won": has_lease, "link": link, "torn": 0, "lost": 0}


def _read_during_rename(path: Path, report: dict[str, Any]) -> None:
    """Read a file that is being replaced, and count incomplete ("torn") and missing ("lost") reads."""
    try:
        report["torn"] += path.read_text(encoding="ascii") != CONTENT
    except OSError:
        report["lost"] += 1


def _write_speed(path: Path) -> float:
    """Return bytes per second of a new file, with fsync."""
    block = os.urandom(WRITTEN_BYTES // 16)  # random, so that no file system can compress it
    begin, written = time.monotonic(), 0
    with open(path, "wb", buffering=0) as file:
        while written < WRITTEN_BYTES and time.monotonic() - begin < WRITE_SECONDS:
            written += file.write(block)
            os.fsync(file.fileno())
    return written / max(time.monotonic() - begin, 1e-6)


def evaluate(reports: Reports, arguments: argparse.Namespace) -> Finding:
    """Look for hosts that do not see each other's files, missing features, and a low speed."""
    first = reports[0]
    place, speed = first["place"], first["speed"]
    if blind := host_names(reports, lambda report: report["visible"] is None):
        text = f"{place} of {first['host']} is not visible on {blind}"
        return FAIL, f"{text}: --directory must be on a shared file system"
    if first["unseen"]:
        text = f"{place}: files written on {join_names(first['unseen'])} are not visible on {first['host']}"
        return FAIL, f"{text}: check whether it is mounted read-only"
    leaders = {rank: report for rank, report in reports.items() if "won" in report}
    if where := host_names(leaders, lambda report: report["link"]):
        refused = ", ".join(dict.fromkeys(report["link"] for report in leaders.values() if report["link"]))
        text = f"{place} does not support hard links on {where} ({refused}), which leases need"
        return FAIL, f"{text}: use another file system"
    if sum(report["won"] for report in leaders.values()) != 1:
        winners = host_names(leaders, lambda report: report["won"]) or "no host"
        text = f"{place}: an exclusive hard link succeeded on {winners} instead of exactly one"
        return FAIL, f"{text}, so leases are not safe: use another file system"
    if where := host_names(leaders, lambda report: report["torn"]):
        return FAIL, f"{place} shows incomplete files on {where} during a rename: use another file system"
    if where := host_names(leaders, lambda report: report["lost"]):
        text = f"{place}: a file is briefly missing on {where} during a rename"
        return WARNING, f"{text}: a start may fail and must be repeated"
    text = f"{place} writes {speed / 1e6:,.0f} MB/s"
    if speed < SLOW:
        return WARNING, f"{text}: a checkpoint of 1 B parameters (12 GB) takes {12e9 / speed / 60:.0f} minutes"
    text += ", hard links and renames work"
    if len({report["host"] for report in reports.values()}) > 1:
        text += f", visible on all hosts after {max(report['visible'] for report in reports.values()):.1f} s"
    if Path(place) != arguments.directory.absolute():
        text += f" ({arguments.directory} does not exist yet)"
    return OK, text


def collect_space(rendezvous: Rendezvous, arguments: argparse.Namespace) -> dict[str, Any] | None:
    """Return free bytes, free inodes, and why the needed bytes cannot be written; on the first rank only."""
    if rendezvous.rank:
        return None
    place = nearest(arguments.directory)
    system = os.statvfs(place)
    need, refused = round(arguments.need * 1e9) if arguments.need else MIN_BYTES, None
    try:
        # each rank writes a share of a checkpoint
        space.require(place, need, "the run" if arguments.need else "the smallest run", rendezvous.world_size)
    except UserError as error:
        refused = str(error)
    inodes = system.f_favail if system.f_files else None  # btrfs and others report none
    return {"place": str(place), "free": system.f_bavail * system.f_frsize, "inodes": inodes, "refused": refused}


def evaluate_space(reports: Reports, arguments: argparse.Namespace) -> Finding:
    """Look for too little space: free bytes, quota, number of files."""
    report = reports[0]
    if report["refused"]:
        return FAIL, f"{report['refused']}: delete files, or request a larger quota"
    if report["inodes"] is not None and report["inodes"] < MIN_INODES:
        return WARNING, f"{report['place']} has only {report['inodes']:,} free inodes: delete files"
    need = f"{arguments.need:g}" if arguments.need else f"{MIN_BYTES / 1e9:g}"
    text = f"{space.amount(report['free'])} free in {report['place']}, {need} GB could be reserved"
    return OK, text if arguments.need else f"{text} (--need GB checks for more)"


FILESYSTEM = Check(TIMEOUT_SECONDS, collect, {"filesystem": evaluate})
DISK_SPACE = Check(20.0, collect_space, {"disk_space": evaluate_space})
