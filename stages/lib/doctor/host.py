"""What each host gives a process: a temporary directory, shared memory, open files."""

import os
import resource
import shutil
import tempfile
from pathlib import Path

from stages.lib.doctor.findings import FAIL, OK, WARNING, Finding, hosts
from stages.lib.space import amount

NAME, SECONDS = "temporary", 15.0
TEMPORARY_BYTES = 1e9  # compiled kernels, Arrow files of evaluation data
SHARED_BYTES = 1e9  # NCCL and data loaders put their buffers there; containers often have 64 MB
OPEN_FILES = 4096


def look(_, __):
    """Facts on the host of this rank; sizes in bytes, None for no limit or no such thing."""
    # not tempfile.gettempdir(), which goes elsewhere in silence
    directory = os.environ.get("TMPDIR") or "/tmp"
    found = {"directory": directory, "error": None, "free": None}
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            file.write(b"x" * 2**20)
        found["free"] = shutil.disk_usage(directory).free
    except OSError as error:
        found["error"] = error.strerror
    shared = Path("/dev/shm")
    found["shared"] = shutil.disk_usage(shared).total if shared.is_dir() else None
    found["infiniband"] = Path("/sys/class/infiniband").is_dir() and any(Path("/sys/class/infiniband").iterdir())
    return found | {name: _limit(kind) for name, kind in LIMITS.items()}


LIMITS = {
    "open files": resource.RLIMIT_NOFILE,
    "file size": resource.RLIMIT_FSIZE,
    "core": resource.RLIMIT_CORE,
    "locked": resource.RLIMIT_MEMLOCK,
}


def _limit(kind):
    soft, _ = resource.getrlimit(kind)
    return None if soft == resource.RLIM_INFINITY else soft


def judge(facts, _):
    """Findings on the temporary directory and on limits."""
    return [Finding(*_on_temporary(facts)), Finding(*_on_limits(facts))]


def _on_temporary(facts):
    first = next(iter(facts.values()))
    for found in facts.values():
        if found["error"]:
            where = hosts(facts, lambda one: one["error"])
            text = f"{found['directory']} cannot be written on {where} ({found['error']}): set TMPDIR to a directory"
            return FAIL, NAME, text
    for found in facts.values():
        if found["free"] < TEMPORARY_BYTES:
            text = f"{found['directory']} has {amount(found['free'])} free on {found['host']}: clear it, or set TMPDIR"
            return WARNING, NAME, text
        if found["shared"] is not None and found["shared"] < SHARED_BYTES:
            text = f"/dev/shm has {amount(found['shared'])} on {found['host']}: NCCL may need more (docker --shm-size)"
            return WARNING, NAME, text
    least = min(found["free"] for found in facts.values())
    return OK, NAME, f"{first['directory']} can be written, {amount(least)} free"


def _on_limits(facts):
    def low(found):
        return found["open files"] is not None and found["open files"] < OPEN_FILES

    def sized(found):
        return found["file size"] is not None

    def locked(found):
        return found["infiniband"] and found["locked"] is not None

    some = next(iter(facts.values()))
    said = []
    if any(map(low, facts.values())):
        least = min(found["open files"] for found in facts.values() if low(found))
        said.append(f"`ulimit -n` is {least} on {hosts(facts, low)}, should be {OPEN_FILES} or more")
    if any(map(sized, facts.values())):
        least = min(found["file size"] for found in facts.values() if sized(found))
        said.append(f"`ulimit -f` ends files at {amount(least)} on {hosts(facts, sized)}: set it to unlimited")
    if any(map(locked, facts.values())):
        said.append(f"`ulimit -l` is limited on {hosts(facts, locked)}: InfiniBand wants unlimited")
    if said:
        return WARNING, "limits", "; ".join(said)
    core = "no core dumps" if some["core"] == 0 else "core dumps are on"
    files = "any number of" if some["open files"] is None else f"{some['open files']:,}"
    return OK, "limits", f"{files} open files, files of any size, {core}"
