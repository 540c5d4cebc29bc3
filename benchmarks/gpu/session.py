"""The run of all steps: the GPU that is measured, time limits, one line of result each, the file of all figures."""

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from benchmarks import harness
from benchmarks.harness import HOME
from stages.lib.errors import UserError
from stages.lib.training.settings import requirements

TAIL = 300  # characters of a failed command's output that are shown
GIB = 1 << 30
LEAST, OTHERS = 10 * GIB, 1 * GIB
"""Memory that the checks of correctness need; memory in use by which another process is on the card."""

MADE = "made"
"""Folder of all that a call makes but the corpus. It is cleared first: a training that exists would not be trained."""

THREADS, DRY_THREADS = "2", "1"  # of each process: several run beside each other, and their models are tiny


def check_gpu():
    """Return torch's name of the GPU. Raises UserError if none exists, it is too old or small, or others use it."""
    import torch

    if not torch.cuda.is_available():
        raise UserError(f"torch {torch.__version__} finds no GPU that it can use on this machine")
    free, total = torch.cuda.mem_get_info()
    name, capability = torch.cuda.get_device_name(), torch.cuda.get_device_capability()
    if torch.version.hip is None and capability < requirements.LEAST_BFLOAT16:
        least, has = (".".join(map(str, each)) for each in (requirements.LEAST_BFLOAT16, capability))
        raise UserError(f"the GPU must have compute capability {least} for bfloat16, and {name} has {has}")
    if total < LEAST:
        raise UserError(f"the GPU must have at least {LEAST / GIB:.0f} GiB of memory, and {name} has {total / GIB:.1f}")
    if total - free > OTHERS:
        raise UserError(f"the GPU must be idle, and {(total - free) / GIB:.1f} GiB of {name} are in use")
    return name


def memory_of_gpu():
    """Return the bytes of the GPU."""
    import torch

    return torch.cuda.mem_get_info()[1]


class StepError(Exception):
    """A step failed: a command ended with an error or took too long, or a figure is out of its bounds.

    `figures`: what was measured all the same; `code`: the exit code of the command.
    """

    def __init__(self, line, figures=None, code=None):
        super().__init__(line)
        self.figures, self.code = figures or {}, code


class Skipped(Exception):
    """A step is left out, and why."""


def require(*packages):
    """Raise Skipped if a package is not installed."""
    if missing := [package for package in packages if importlib.util.find_spec(package) is None]:
        raise Skipped(f"{' and '.join(missing)} must be installed")


@dataclass(frozen=True, kw_only=True)
class Step:
    """One check or measurement. `take` returns its line of result and its figures; `minutes`: its time limit."""

    name: str
    take: Callable[[], tuple[str, dict]]
    minutes: float
    alone: bool = True
    """False if others may run beside it."""


class Session:
    """Runs steps and keeps what they found. `device`: torch's name of the GPU, None for the dry form.

    `peers`: {name: command} of further peers, see peers.py.
    """

    def __init__(self, work, output, minutes, dry, device, peers=None):
        self.work, self.output, self.dry, self.device = work.absolute(), output, dry, device
        self.peers = peers or {}
        self.ends = time.monotonic() + minutes * 60
        self.limits = {}
        self.found = {}
        self.corpus, self.made = self.work / "corpus", self.work / MADE
        self._lock = threading.Lock()
        shutil.rmtree(self.made, ignore_errors=True)
        self.made.mkdir(parents=True)

    def run(self, steps):
        """Take steps in their order; neighbors that may run beside each other do, as many as there are cores."""
        steps = list(steps)
        while steps:
            together = 1
            while not steps[0].alone and together < len(steps) and not steps[together].alone:
                together += 1
            if together == 1:  # in this thread: torch ends the process if another one uses fake tensors first
                self._take(steps[0])
            else:
                self._take_together(steps[:together])
            steps = steps[together:]

    def _take_together(self, steps):
        with ThreadPoolExecutor(max(1, min(8, (os.cpu_count() or 2) // 2))) as pool:
            list(pool.map(self._take, steps))

    def end(self):
        """Print the counts; return the exit code: 1 if a step failed."""
        states = [found["state"] for found in self.found.values()]
        print(", ".join(f"{states.count(state)} {state}" for state in ("ok", "FAILED", "skipped")))
        return int("FAILED" in states)

    def _take(self, step):
        begun, figures = time.monotonic(), {}
        if begun > self.ends:
            state, line = "skipped", "no time is left"
        else:
            self.limits[step.name] = begun + step.minutes * 60
            try:
                state, (line, figures) = "ok", step.take()
            except Skipped as reason:
                state, line = "skipped", str(reason)
            except StepError as error:
                state, line, figures = "FAILED", str(error), error.figures
            except Exception as error:  # any failure of a step is its result: the others go on
                state, line = "FAILED", f"{type(error).__name__}: {error}"
        seconds = time.monotonic() - begun
        with self._lock:
            print(f"{state:<7} {step.name} ({seconds:.0f} s): {line}", flush=True)
            stored = line.replace(f"{self.work}/", "")  # results name no directory of one machine
            self.found[step.name] = {"state": state, "line": stored, "seconds": round(seconds, 1)} | figures
            harness.write(self.output, "gpu", ("torch",), {"steps": self.found}, quiet=True)

    def command(self, step, *words, on_cpu=False, kill_when=None):
        """Run `python -m WORDS` within the limit of a step; its output goes to a log. Raises StepError.

        `kill_when`: called a hundred times per second; the process group is killed once it returns True.
        """
        path = os.pathsep.join(filter(None, [str(HOME), os.environ.get("PYTHONPATH")]))
        variables = {"PYTHONPATH": path} | ({"CUDA_VISIBLE_DEVICES": ""} if on_cpu or self.dry else {})
        return self.execute(step, [sys.executable, "-m", *map(str, words)], HOME, variables, kill_when)

    def log_of(self, step):
        """Return the file with the output of a step's commands."""
        return self.made / "logs" / f"{step.replace(' ', '_').replace('/', '_')}.log"

    def execute(self, step, started, directory, variables=None, kill_when=None):
        """Run a command in a directory with further environment variables; otherwise as `command`.

        Returns True if it was killed by `kill_when`.
        """
        log = self.log_of(step)
        log.parent.mkdir(exist_ok=True)
        environment = os.environ | {"OMP_NUM_THREADS": DRY_THREADS if self.dry else THREADS} | (variables or {})
        with open(log, "a", encoding="utf-8") as file:
            process = subprocess.Popen(
                started, cwd=directory, env=environment, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
            )
            try:
                while process.poll() is None:
                    if time.monotonic() > self.limits[step]:
                        raise StepError(f"took longer than its limit; see {log}")
                    if kill_when is not None and kill_when():
                        return True
                    time.sleep(0.01)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        if code := process.returncode:
            lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or [""]
            raise StepError(f"exit code {code}: {lines[-1][-TAIL:]}; see {log}", code=code)
        return False
