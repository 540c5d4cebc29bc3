"""The lease on a run directory: one trainer at a time, on any host; and the scheduler's job around this process.

lease.json holds who holds it (`Holder`) and its heartbeat. It is created complete, by a hard link that fails if the
file exists. Shared file systems support that, while flock may be missing or local to a node.

Only the kernel that runs the holder tells whether it is dead. It is this process' own kernel if boot id and
PID namespace are the same; a host name does not tell, because containers share it. For every other process the
heartbeat decides: one that is fresh is never overruled, and squeue only shortens the wait for one that is late.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import socket
import subprocess
import threading
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from stages.lib import files
from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.run_directory import journal

ENDED = {
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT")
}
"""Slurm's states of a job that does not run and will not."""


def job_number() -> str | None:
    """Return the number of this job; None outside a job. A launcher passes that of another scheduler."""
    return os.environ.get("CARAVAN_JOB_ID") or os.environ.get("SLURM_JOB_ID")


def job_cluster() -> str | None:
    """Return the name of the cluster: job numbers are unique only within it."""
    return os.environ.get("SLURM_CLUSTER_NAME")


def job_restarts() -> int:
    """Return the number of times that the scheduler requeued this job.

    The launcher passes it, because Snakemake's Slurm plugin drops SLURM_RESTART_COUNT.
    """
    restarts = os.environ.get("CARAVAN_JOB_RESTARTS") or os.environ.get("SLURM_RESTART_COUNT") or ""
    return int(restarts) if restarts.isdecimal() else 0


def job_has_ended(job: str) -> bool:
    """Return True if Slurm lists a job of this cluster as ended.

    A job that squeue does not list may still run: sites hide the jobs of other users (PrivateData=jobs).
    """
    command = ["squeue", "--noheader", "--states=all", "--jobs", job, "--format", "%T"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    states = set(done.stdout.split())
    return not done.returncode and bool(states) and states <= ENDED


LATE_SECONDS = 30
"""Age of a heartbeat from which the end of the holder's job is believed: three heartbeats are missing."""

STALE_SECONDS = 300
"""Age of a heartbeat from which its holder is dead in any case. One that lies as far in the future is no sign of life
either: the clock of its host was wrong, and no later start could ever take the lease over."""

MAX_PID = 1 << 22
"""Linux has no higher pid."""


@dataclass(frozen=True, kw_only=True)
class Holder:
    """The content of lease.json."""

    host: str
    pid: int

    started: int | None
    """Start of the process, in clock ticks since boot; None if unknown. It tells a later process with the same pid."""

    boot_id: str | None = None
    pid_namespace: str | None = None
    job: str | None
    cluster: str | None = None
    restarts: int = 0
    """Number of times that the job was requeued."""

    heartbeat: float
    """Time of the last sign of life, in seconds since 1970."""

    token: str
    """A random name of this lease."""

    def __post_init__(self) -> None:
        """Raise TypeError for a value of another type: the file may be damaged."""
        optional = (self.boot_id, self.pid_namespace, self.job, self.cluster)
        texts = [self.host, self.token, *(text for text in optional if text is not None)]
        numbers = [self.heartbeat, self.restarts, 0 if self.started is None else self.started]
        valid = all(map(journal.is_text, texts)) and all(map(journal.is_number, numbers))
        if not valid or not journal.is_count(self.pid) or not 0 < self.pid <= MAX_PID:
            raise TypeError("not the content of a lease")

    @classmethod
    def of_this_process(cls, token: str) -> Holder:
        """Return this process as the holder of a new lease."""
        boot_id, pid_namespace = _place()
        return cls(
            host=socket.gethostname(),
            pid=os.getpid(),
            started=(_state_and_start(os.getpid()) or (None, None))[1],
            boot_id=boot_id,
            pid_namespace=pid_namespace,
            job=job_number(),
            cluster=job_cluster(),
            restarts=job_restarts(),
            heartbeat=time.time(),
            token=token,
        )

    @classmethod
    def read(cls, path: Path) -> Holder | None:
        """Return the content of lease.json; None if it is missing or not valid."""
        names = [field.name for field in dataclasses.fields(cls)]
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            return cls(**{name: content[name] for name in names if name in content})
        except (OSError, ValueError, TypeError, RecursionError):
            return None

    def __str__(self) -> str:
        """Return what people know the process by."""
        return f"process {self.pid} on {self.host}" + (f", job {self.job}" if self.job else "")

    def is_dead(self) -> bool:
        """Return whether the lease may be taken over."""
        running = self.runs_here()
        if running is not None:
            return not running
        age = abs(time.time() - self.heartbeat)
        return age > STALE_SECONDS or (age > LATE_SECONDS and self._job_ended())

    def runs_here(self) -> bool | None:
        """Return whether the process runs in this kernel and PID namespace; None if that cannot be known."""
        here = _place()
        if None in here or here != (self.boot_id, self.pid_namespace):
            return None
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass  # it runs, as another user
        found = _state_and_start(self.pid)
        if found is None or self.started is None:  # /proc hides the processes of other users
            return None
        return found[0] != "Z" and found[1] == self.started

    def _job_ended(self) -> bool:
        if self.job is None or self.cluster != job_cluster():
            return False
        if self.job == job_number():
            return self.restarts < job_restarts()  # this job was requeued, and this was its earlier start
        return self.cluster is not None and job_has_ended(self.job)


def _place() -> tuple[str | None, str | None]:
    """Return (boot id, PID namespace) of this process; (None, None) if /proc does not tell."""
    try:
        if os.readlink("/proc/self") != str(os.getpid()):  # /proc is that of another PID namespace
            return None, None
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip(), os.readlink("/proc/self/ns/pid")
    except OSError:
        return None, None


def _state_and_start(pid: int) -> tuple[str, int] | None:
    """Return (state, start in clock ticks since boot) of a process; None if /proc does not show it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return fields[0], int(fields[19])


HEARTBEAT_SECONDS = 10
FILE = "lease.json"


class HeldError(UserError):
    """A live trainer holds the lease."""

    def __init__(self, path: Path, holder: Holder) -> None:
        super().__init__(f"{path} is held by a live trainer ({holder})")
        self.holder = holder


class Lease:
    """A lease that this process holds. Call `check` before every commit, and `release` at the end."""

    def __init__(self, directory: Path | str) -> None:
        """Acquire the lease on a directory.

        Raises HeldError if a live trainer holds it, UserError if lease.json is not valid.
        """
        self.path = Path(directory) / FILE
        self._holder = Holder.of_this_process(uuid.uuid4().hex)
        self._stop = threading.Event()
        while not self._create():
            _remove_stale(self.path)
        self._thread = threading.Thread(target=self._beat, name="lease", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise UserError if another process took the lease over."""
        held = Holder.read(self.path)
        if held is None or held.token != self._holder.token:
            by = "no process" if held is None else str(held)
            raise UserError(f"{self.path} must be held by this trainer, but was taken over: {by} holds it")

    def release(self) -> None:
        """Stop the heartbeat and delete lease.json."""
        self._stop.set()
        self._thread.join()
        with contextlib.suppress(UserError, OSError):  # taken over, or the file system cannot be written
            self.check()
            self.path.unlink()

    def _create(self) -> bool:
        temporary = self.path.with_name(f".lease.{self._holder.token}")
        try:
            temporary.write_text(json.dumps(dataclasses.asdict(self._holder)), encoding="utf-8")
            with contextlib.suppress(FileNotFoundError):  # the trainer that acquired the lease deleted it as a leftover
                os.link(temporary, self.path)  # exclusive, and with its whole content
                return True
            return False
        except FileExistsError:
            return False
        except OSError as error:
            raise UserError(f"{self.path} could not be created: {error.strerror}") from None
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink()

    def _beat(self) -> None:
        while not self._stop.wait(HEARTBEAT_SECONDS):
            try:
                self.check()
                now = dataclasses.replace(self._holder, heartbeat=time.time())
                files.write_json(self.path, dataclasses.asdict(now))
            except (OSError, UserError) as error:
                logger.warning("the lease could not be renewed: %s", error)


def holder(directory: Path | str) -> Holder | None:
    """Return the live process that holds the lease on a directory; None if there is none."""
    held = Holder.read(Path(directory) / FILE)
    return None if held is None or held.is_dead() else held


def _remove_stale(path: Path) -> None:
    """Delete the lease of a dead trainer. Raises HeldError if the trainer is alive, UserError if it is not valid."""
    held = Holder.read(path)
    if held is None:
        if path.exists() and Holder.read(path) is None:
            raise UserError(f"{path} is not a valid lease; delete it if no trainer runs in its directory")
        return
    if not held.is_dead():
        raise HeldError(path, held)
    aside = path.with_name(f".lease.stale.{uuid.uuid4().hex}")
    with contextlib.suppress(FileNotFoundError):  # another trainer was faster
        os.rename(path, aside)
        moved = Holder.read(aside)
        if moved is not None and not moved.is_dead():
            with contextlib.suppress(FileExistsError):
                os.link(aside, path)  # it was renewed, or acquired, in between: restore it
        aside.unlink()
