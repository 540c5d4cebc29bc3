"""One start of a training by the launcher, and all processes of it."""

import contextlib
import os
import subprocess
import time
import uuid

from tests.helpers import processes
from tests.helpers.training import HOME, environment

PATIENCE = 300  # seconds after which a training without progress is a fault


class Fault(Exception):
    """A training behaved wrongly."""


class Training:
    """A running training. Its processes are found by a variable in their environment: they share no session or parent,
    since torchrun gives each rank a session of its own, and a kill leaves orphans.
    """

    def __init__(self, ranks, arguments, directory):
        self.mark = f"CARAVAN_DRILL={uuid.uuid4().hex}"
        name, _, value = self.mark.partition("=")
        scratch = directory / "scratch"  # a killed launcher leaves its own there
        scratch.mkdir(parents=True, exist_ok=True)
        self.said = directory / "said.txt"
        with open(self.said, "w", encoding="utf-8") as said:
            self.process = subprocess.Popen(
                [HOME / "workflow/launch", str(ranks), "-m", "stages.pretrain", *arguments],
                env=environment() | {name: value, "TMPDIR": str(scratch)},
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
        self.begun = time.time()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()

    def processes(self):
        """Return the ids of the launcher, torchrun's agent, the ranks, and their children."""
        return processes.with_one_of(self.mark)

    def ranks(self):
        """Return {rank: process id} of the living ranks."""
        named = {}
        for process in sorted(self.processes()):
            variables = processes.environment_of(process)
            if own := [variable for variable in variables if variable.startswith("RANK=")]:
                named.setdefault(int(own[0].removeprefix("RANK=")), process)  # before its children
        return named

    def send(self, process, number):
        """Send a signal to a process, unless it just ended."""
        processes.kill({process}, number)

    def kill(self):
        """SIGKILL every process, again until none is left."""
        while alive := self.processes():
            processes.kill(alive)
            time.sleep(0.01)
        self.process.wait()

    def wait_until(self, ready):
        """Wait for `ready()`. Raises Fault when the training ends before, or takes too long."""
        until = time.monotonic() + PATIENCE
        while not ready():
            if self.process.poll() is not None:
                raise Fault(f"a training ended with {self.process.returncode} before its disturbance: {self.tail()}")
            if time.monotonic() > until:
                raise Fault(f"a training did not reach its next disturbance: {self.tail()}")
            time.sleep(0.002)

    def end(self):
        """Wait for the launcher; returns its exit code. Raises Fault if it does not end, or leaves a process behind."""
        try:
            code = self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise Fault(f"a training did not end: {self.tail()}") from None
        until = time.monotonic() + 5  # a rank may be about to end
        while self.processes():
            if time.monotonic() > until:
                raise Fault(
                    f"a launcher that ended left processes behind: {', '.join(map(_command, self.processes()))}"
                )
            time.sleep(0.01)
        return code

    def tail(self):
        """Return the stage's last message; the last lines of the output if it printed none."""
        lines = self.said.read_text(encoding="utf-8").splitlines()
        own = [line for line in lines if line.startswith("pretrain: ")]
        return own[-1] if own else " / ".join(lines[-5:])


def _command(process):
    """Return a process id and its command line."""
    with contextlib.suppress(OSError), open(f"/proc/{process}/cmdline", "rb") as file:
        return f"{process} ({os.fsdecode(file.read()).replace(chr(0), ' ').strip()[:80]})"
    return str(process)
