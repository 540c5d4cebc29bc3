"""Check that all hosts share the directory of the runs, and that it supports leases and checkpoints."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import time
import uuid
from pathlib import Path
from typing import Any

from stages.lib.errors import UserError
from tools.doctor.rendezvous import Rendezvous
from tools.doctor.result import FAIL, OK, WARNING, Reports, Result, host_names, join_names

NAME, TIMEOUT_SECONDS = "filesystem", 60.0
VISIBLE_SECONDS = 20.0  # longest time until a file is visible on another host; a profile's latency-wait is 60
WRITTEN_BYTES, WRITE_SECONDS = 64_000_000, 10.0
SLOW = 50e6  # bytes per second: a checkpoint of a model of 1 B parameters, 12 GB, then takes 4 minutes
RENAME_SECONDS = 0.5
CONTENT = "written by the doctor\n" * 200  # longer than what fits into an inode


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
            speed = _write_speed(scratch / "speed")
            (scratch / "first").write_text(CONTENT, encoding="ascii")
            rendezvous.set("scratch", str(scratch))
            return {"place": str(scratch.parent), "speed": speed} | _test_on_first_rank(rendezvous, scratch)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    except OSError as error:
        rendezvous.set("scratch", None)
        raise UserError(f"{scratch.parent} must be a writable directory: {error.strerror}") from None


def _test_on_first_rank(rendezvous: Rendezvous, scratch: Path) -> dict[str, Any]:
    others = [rank for rank in rendezvous.leaders if rank]
    own = {"visible": 0.0} | _try_link(scratch, 0)
    (scratch / "renamed").write_text(CONTENT, encoding="ascii")
    rendezvous.set("rename", True)
    end = time.monotonic() + RENAME_SECONDS
    own["reads"], own["torn"], own["lost"] = 0, 0, 0
    while time.monotonic() < end:
        (scratch / "renaming").write_text(CONTENT, encoding="ascii")
        os.replace(scratch / "renaming", scratch / "renamed")
        _read_during_rename(scratch / "renamed", own)
    unseen = []
    for rank in others:
        answer = rendezvous.get(f"tested {rank}", VISIBLE_SECONDS + TIMEOUT_SECONDS / 2)
        if answer["visible"] is not None and _seconds_until_visible(scratch / f"from {rank}") is None:
            unseen.append(rank)
    for rank in set(range(1, rendezvous.world_size)) - set(others) - set(rendezvous.missing):
        rendezvous.get(f"tested {rank}", VISIBLE_SECONDS)
    return own | {"unseen": [rendezvous.leaders[rank] for rank in unseen]}


def _test_on_other_rank(rendezvous: Rendezvous) -> dict[str, Any]:
    name = rendezvous.get("scratch", TIMEOUT_SECONDS / 2)
    found: dict[str, Any] = {"visible": None}
    if name is not None:
        scratch = Path(name)
        found["visible"] = _seconds_until_visible(scratch / "first")
        if found["visible"] is not None and rendezvous.is_leader:
            found |= _test_on_leader(rendezvous, scratch)
    rendezvous.set(f"tested {rendezvous.rank}", found)
    return found


def _test_on_leader(rendezvous: Rendezvous, scratch: Path) -> dict[str, Any]:
    found = _try_link(scratch, rendezvous.rank) | {"reads": 0, "torn": 0, "lost": 0}
    rendezvous.get("rename", VISIBLE_SECONDS)
    if _seconds_until_visible(scratch / "renamed") is not None:
        end = time.monotonic() + RENAME_SECONDS
        while time.monotonic() < end:
            _read_during_rename(scratch / "renamed", found)
    with contextlib.suppress(OSError):  # the first rank reports it as not visible
        (scratch / f"from {rendezvous.rank}").write_text(CONTENT, encoding="ascii")
    return found


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
    """Create a hard link as a lease does: only one rank may succeed."""
    own = scratch / f"own {rank}"
    try:
        own.write_text(CONTENT, encoding="ascii")
        os.link(own, scratch / "lease")
        return {"won": True, "link": None}
    except FileExistsError:
        return {"won": False, "link": None}
    except OSError as error:
        return {"won": False, "link": error.strerror}


def _read_during_rename(path: Path, found: dict[str, Any]) -> None:
    """Read a file that is being replaced, and count incomplete ("torn") and missing ("lost") reads."""
    found["reads"] += 1
    try:
        found["torn"] += path.read_text(encoding="ascii") != CONTENT
    except OSError:
        found["lost"] += 1


def _write_speed(path: Path) -> float:
    """Return bytes per second of a new file, with fsync."""
    block = os.urandom(WRITTEN_BYTES // 16)  # random, so that no file system can compress it
    begin, written = time.monotonic(), 0
    with open(path, "wb", buffering=0) as file:
        while written < WRITTEN_BYTES and time.monotonic() - begin < WRITE_SECONDS:
            written += file.write(block)
            os.fsync(file.fileno())
    return written / max(time.monotonic() - begin, 1e-6)


def evaluate(reports: Reports, arguments: argparse.Namespace) -> list[Result]:
    """Return one result."""
    first = reports[0]
    place = first["place"]
    blind = host_names(reports, lambda report: report["visible"] is None)
    if blind:
        text = f"{place} of {first['host']} is not visible on {blind}: --directory must be on a shared file system"
        return [Result(FAIL, NAME, text)]
    if first["unseen"]:
        text = f"{place}: files written on {join_names(first['unseen'])} are not visible on {first['host']}: check "
        return [Result(FAIL, NAME, f"{text}whether it is mounted read-only")]
    leaders = {rank: report for rank, report in reports.items() if "won" in report}
    return [_evaluate_features(leaders, place) or _evaluate_speed(reports, place, arguments)]


def _evaluate_features(reports: Reports, place: str) -> Result | None:
    if refused := dict.fromkeys(report["link"] for report in reports.values() if report["link"]):
        where = host_names(reports, lambda report: report["link"])
        text = f"{place} does not support hard links on {where} ({', '.join(refused)}), which leases need"
        return Result(FAIL, NAME, f"{text}: use another file system")
    if sum(report["won"] for report in reports.values()) != 1:
        winners = host_names(reports, lambda report: report["won"]) or "no host"
        text = f"{place}: an exclusive hard link succeeded on {winners} instead of exactly one"
        return Result(FAIL, NAME, f"{text}, so leases are not safe: use another file system")
    if any(report["torn"] for report in reports.values()):
        where = host_names(reports, lambda report: report["torn"])
        return Result(FAIL, NAME, f"{place} shows incomplete files on {where} during a rename: use another file system")
    if any(report["lost"] for report in reports.values()):
        where = host_names(reports, lambda report: report["lost"])
        text = f"{place}: a file is briefly missing on {where} during a rename: a start may fail and must be repeated"
        return Result(WARNING, NAME, text)
    return None


def _evaluate_speed(reports: Reports, place: str, arguments: argparse.Namespace) -> Result:
    speed = reports[0]["speed"]
    text = f"{place} writes {speed / 1e6:,.0f} MB/s"
    if speed < SLOW:
        minutes = 12e9 / speed / 60
        return Result(WARNING, NAME, f"{text}: a checkpoint of 1 B parameters (12 GB) takes {minutes:.0f} minutes")
    latest = max(report["visible"] for report in reports.values())
    shared = len({report["host"] for report in reports.values()}) > 1
    text += ", hard links and renames work" + (f", visible on all hosts after {latest:.1f} s" if shared else "")
    note = "" if Path(place) == arguments.directory.absolute() else f" ({arguments.directory} does not exist yet)"
    return Result(OK, NAME, text + note)
