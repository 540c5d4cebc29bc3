"""The lease on a run directory: one trainer at a time, on any host.

lease.json holds host, pid, the process' start time, job and heartbeat. It is created complete, by a hard link that
fails if the file exists. Shared file systems support that, while flock may be missing or local to a node.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import threading
import time
import uuid
from pathlib import Path
from typing import Any

from stages.lib import files
from stages.lib.errors import UserError
from stages.lib.log import logger

HEARTBEAT_SECONDS = 30
STALE_SECONDS = 300
KEYS = {"host", "pid", "started", "job", "heartbeat", "token"}


class HeldError(UserError):
    """A live trainer holds the lease."""


class Lease:
    """A lease that this process holds. Call `check` before every commit, and `release` at the end."""

    def __init__(self, directory: Path | str) -> None:
        """Acquire the lease on a directory.

        Raises HeldError if a live trainer holds it, UserError if lease.json is not valid.
        """
        self.path = Path(directory) / "lease.json"
        self.token = uuid.uuid4().hex
        self._stop = threading.Event()
        while not self._create():
            _remove_stale(self.path)
        self._thread = threading.Thread(target=self._beat, name="lease", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise UserError if another process took the lease over."""
        held = _read(self.path)
        if held is None or held["token"] != self.token:
            by = "no process" if held is None else f"process {held['pid']} on {held['host']}"
            raise UserError(f"{self.path} must be held by this trainer, but was taken over: {by} holds it")

    def release(self) -> None:
        """Stop the heartbeat and delete lease.json."""
        self._stop.set()
        self._thread.join()
        with contextlib.suppress(UserError, OSError):  # taken over, or the file system cannot be written
            self.check()
            self.path.unlink()

    def _create(self) -> bool:
        temporary = self.path.with_name(f".lease.{self.token}")
        try:
            temporary.write_text(json.dumps(self._content()), encoding="utf-8")
            os.link(temporary, self.path)  # exclusive, and with its whole content
            return True
        except FileExistsError:
            return False
        except OSError as error:
            raise UserError(f"{self.path} could not be created: {error.strerror}") from None
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink()

    def _content(self) -> dict[str, Any]:
        return {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started": _start_time(os.getpid()),
            "job": os.environ.get("SLURM_JOB_ID"),
            "restart": os.environ.get("SLURM_RESTART_COUNT"),
            "heartbeat": time.time(),
            "token": self.token,
        }

    def _beat(self) -> None:
        while not self._stop.wait(HEARTBEAT_SECONDS):
            try:
                self.check()
                files.write_json(self.path, self._content())
            except (OSError, UserError) as error:
                logger.warning("the lease could not be renewed: %s", error)


def holder(directory: Path | str) -> str | None:
    """Return the live process that holds the lease on a directory, as text; None if there is none."""
    held = _read(Path(directory) / "lease.json")
    if held is None or _is_stale(held):
        return None
    job = f", job {held['job']}" if held["job"] else ""
    return f"process {held['pid']} on {held['host']}{job}"


def _remove_stale(path: Path) -> None:
    """Delete the lease of a dead trainer. Raises HeldError if the trainer is alive, UserError if it is not valid."""
    held = _read(path)
    if held is None:
        if path.exists() and _read(path) is None:
            raise UserError(f"{path} is not a valid lease; delete it if no trainer runs in its directory")
        return
    if not _is_stale(held):
        raise HeldError(
            f"{path} is held by a live trainer ({holder(path.parent)}); wait for it, or stop it and restart"
        )
    aside = path.with_name(f".lease.stale.{uuid.uuid4().hex}")
    with contextlib.suppress(FileNotFoundError):  # another trainer was faster
        os.rename(path, aside)
        moved = _read(aside)
        if moved is not None and moved["token"] != held["token"]:
            with contextlib.suppress(FileExistsError):
                os.link(aside, path)  # it was renewed in between: restore it
        aside.unlink()


def _is_stale(held: dict[str, Any]) -> bool:
    if held["host"] == socket.gethostname():
        return _start_time(held["pid"]) != held["started"]
    if held["job"] and (_was_requeued(held) or _job_ended(held["job"])):
        return True
    return time.time() - held["heartbeat"] > STALE_SECONDS


def _was_requeued(held: dict[str, Any]) -> bool:
    """Return whether the holder is an earlier start of this Slurm job."""
    same = held["job"] == os.environ.get("SLURM_JOB_ID")
    return same and held.get("restart") != os.environ.get("SLURM_RESTART_COUNT")


def _job_ended(job: str) -> bool:
    """Return whether Slurm reports that a job ended; False if squeue is missing or fails."""
    if shutil.which("squeue") is None:
        return False
    command = ["squeue", "--noheader", "--jobs", job, "--format", "%T"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    if done.returncode:
        return "Invalid job id" in done.stderr
    return done.stdout.strip() not in ("PENDING", "RUNNING", "SUSPENDED", "COMPLETING", "STOPPED")


def _start_time(pid: int) -> int | None:
    """Return when a local process started, in clock ticks since boot; None if it does not exist or is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[19])


def _read(path: Path) -> dict[str, Any] | None:
    """Return the content of lease.json; None if it is missing or not valid."""
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return held if isinstance(held, dict) and held.keys() >= KEYS else None
