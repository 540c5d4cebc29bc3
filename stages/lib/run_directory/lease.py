"""The lease on a run directory: one trainer at a time, wherever it runs.

lease.json holds host, pid, the pid's start time, job and heartbeat. It appears by a hard link, whole and only where
there is none. Shared file systems give that, where flock may be missing or local to a node.
"""

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

from stages.lib import files
from stages.lib.errors import UserError
from stages.lib.log import logger

HEARTBEAT_SECONDS = 30
STALE_SECONDS = 300
KEYS = {"host", "pid", "started", "job", "heartbeat", "token"}


class HeldError(UserError):
    """A live trainer holds the lease."""


class Lease:
    """A lease that this process holds. `check()` before every commit, `release()` at the end."""

    def __init__(self, directory):
        """Take the lease on a directory. Raises HeldError when a live trainer holds it, UserError for a torn one."""
        self.path = Path(directory) / "lease.json"
        self.token = uuid.uuid4().hex
        self._stop = threading.Event()
        while not self._create():
            _clear_stale(self.path)
        self._thread = threading.Thread(target=self._beat, name="lease", daemon=True)
        self._thread.start()

    def check(self):
        """Raise UserError when the lease is no longer ours."""
        held = _read(self.path)
        if held is None or held["token"] != self.token:
            by = "nobody" if held is None else f"process {held['pid']} on {held['host']}"
            raise UserError(f"{self.path} must be held by this trainer, and was taken over: {by} holds it")

    def release(self):
        """Stop the heartbeat and give the lease back."""
        self._stop.set()
        self._thread.join()
        with contextlib.suppress(UserError, OSError):  # not ours any more, or nothing can be written
            self.check()
            self.path.unlink()

    def _create(self):
        temporary = self.path.with_name(f".lease.{self.token}")
        try:
            temporary.write_text(json.dumps(self._content()), encoding="utf-8")
            os.link(temporary, self.path)  # O_EXCL and the whole content in one
            return True
        except FileExistsError:
            return False
        except OSError as error:
            raise UserError(f"{self.path} could not be made: {error.strerror}") from None
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink()

    def _content(self):
        return {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started": _start_time(os.getpid()),
            "job": os.environ.get("SLURM_JOB_ID"),
            "restart": os.environ.get("SLURM_RESTART_COUNT"),
            "heartbeat": time.time(),
            "token": self.token,
        }

    def _beat(self):
        while not self._stop.wait(HEARTBEAT_SECONDS):
            try:
                self.check()
                files.write_json(self.path, self._content())
            except (OSError, UserError) as error:
                logger.warning("the lease could not be renewed: %s", error)


def holder(directory):
    """Who holds the lease on a directory, as a sentence; None where nobody alive does."""
    held = _read(Path(directory) / "lease.json")
    if held is None or _is_stale(held):
        return None
    job = f", job {held['job']}" if held["job"] else ""
    return f"process {held['pid']} on {held['host']}{job}"


def _clear_stale(path):
    held = _read(path)
    if held is None:
        if path.exists() and _read(path) is None:
            raise UserError(f"{path} must hold a lease, and does not; delete it when no trainer runs in its directory")
        return
    if not _is_stale(held):
        raise HeldError(
            f"{path} is held by a live trainer ({holder(path.parent)}); wait for it, or stop it and start again"
        )
    aside = path.with_name(f".lease.stale.{uuid.uuid4().hex}")
    with contextlib.suppress(FileNotFoundError):  # another trainer was faster
        os.rename(path, aside)
        moved = _read(aside)
        if moved is not None and moved["token"] != held["token"]:
            with contextlib.suppress(FileExistsError):
                os.link(aside, path)  # it was renewed in between: put it back
        aside.unlink()


def _is_stale(held):
    if held["host"] == socket.gethostname():
        return _start_time(held["pid"]) != held["started"]
    if held["job"] and (_was_requeued(held) or _job_is_gone(held["job"])):
        return True
    return time.time() - held["heartbeat"] > STALE_SECONDS


def _was_requeued(held):
    """Whether this is the holder's own Slurm job, which was started again elsewhere."""
    same = held["job"] == os.environ.get("SLURM_JOB_ID")
    return same and held.get("restart") != os.environ.get("SLURM_RESTART_COUNT")


def _job_is_gone(job):
    if shutil.which("squeue") is None:
        return False
    command = ["squeue", "--noheader", "--jobs", job, "--format", "%T"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    if answer.returncode:
        return "Invalid job id" in answer.stderr
    return answer.stdout.strip() not in ("PENDING", "RUNNING", "SUSPENDED", "COMPLETING", "STOPPED")


def _start_time(pid):
    """When a process of this machine started, in clock ticks since boot; None for a zombie, or where there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[19])


def _read(path):
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return held if isinstance(held, dict) and held.keys() >= KEYS else None
