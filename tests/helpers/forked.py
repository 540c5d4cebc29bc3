"""Run a stage in forked processes, which cost no import of torch, and see how it ends."""

import contextlib
import faulthandler
import os
import signal
import sys
import time
import traceback
from dataclasses import dataclass

from tests.helpers.ports import free_ports

SECONDS = 240  # after which an attempt counts as hanging


@dataclass(frozen=True)
class Ended:
    """End of a stage: exit code (negative: killed by this signal), standard output and error, and seconds."""

    code: int
    text: str
    seconds: float

    @property
    def refused(self):
        """Return whether it ended as for a mistake of the user's: exit code 2, one line, no traceback."""
        return self.code == 2 and len(self.text.strip().splitlines()) == 1 and "Traceback" not in self.text

    @property
    def last_line(self):
        """Return the last line that was printed."""
        return (self.text.strip().splitlines() or [""])[-1]


def run(call, directory, ranks=0, prepare=None, scratch=None):
    """Run `call()`, which returns an exit code, in `directory` on forked ranks; the first rank to fail ends the others.

    `ranks`: 0 for a process without a launcher. `prepare(rank)` is called in each process first. `scratch`: directory
    of what is printed, by default the one above. Threads are not forked: torch must not have started any.
    """
    begun, scratch = time.monotonic(), scratch or directory.parent
    printed, exit_file = scratch / "printed", scratch / "exit"
    exit_file.unlink(missing_ok=True)
    with open(printed, "wb") as file:
        (port,) = free_ports(1)
        environments = [_environment(rank, ranks, port, exit_file) for rank in range(ranks)] or [{}]
        waiting = {_fork(call, directory, file, environment, prepare) for environment in environments}
        code = 0
        while waiting:
            process, status = os.waitpid(-1, os.WNOHANG)
            if code != "hangs" and time.monotonic() - begun > SECONDS:
                _end_hanging(waiting - {process})
                code = "hangs"
            if process == 0:
                time.sleep(0.002)
                continue
            if process not in waiting:  # another child of the tests
                continue
            waiting.discard(process)
            if ended := os.waitstatus_to_exitcode(status):
                code = code or ended
                _kill(waiting)
    if exit_file.exists():
        code = int(exit_file.read_text() or 1)
    return Ended(code, printed.read_text(encoding="utf-8", errors="replace"), time.monotonic() - begun)


def _environment(rank, ranks, port, exit_file):
    """Return what torchrun and workflow/launch set."""
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_PORT": port}
    return {name: str(value) for name, value in numbers.items()} | {
        "MASTER_ADDR": "127.0.0.1",
        "CARAVAN_EXIT_FILE": str(exit_file),
    }


def _fork(call, directory, printed, environment, prepare):
    sys.stdout.flush()
    sys.stderr.flush()
    process = os.fork()
    if process:
        return process
    code = 1
    try:  # after any error as well: this copy of the caller must not leave the caller's `with` blocks, and continue
        code = _called(call, directory, printed, environment, prepare)
    finally:
        os._exit(code)


def _called(call, directory, printed, environment, prepare):
    """Call it as a process of its own would; return the exit code."""
    code = 1
    try:
        os.environ.update(environment)
        os.chdir(directory)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(printed.fileno(), 1)
        os.dup2(printed.fileno(), 2)
        faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)
        if prepare:
            prepare(int(environment.get("RANK", 0)))
        code = call()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    with contextlib.suppress(OSError):  # no room for what it prints
        sys.stdout.flush()
        sys.stderr.flush()
    return code


def _end_hanging(processes):
    """Have each process print where it stands, and kill it."""
    for process in processes:
        os.kill(process, signal.SIGUSR1)
    time.sleep(1)
    _kill(processes)


def _kill(processes):
    for process in processes:
        os.kill(process, signal.SIGKILL)
