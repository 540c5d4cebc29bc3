"""A watchdog for hangs: a thread a rank that ends a training in which nothing moves, with the stacks of all ranks.

A rank that does not come to a collective blocks all the others, so the one that hangs may not be the one whose time is
up: the first to notice calls all ranks through a file in the run directory, and each writes its own stacks. Then they
end to be started again, since most hangs (a lost packet, a sick network card, a stuck file system) are gone then.
"""

import ctypes
import faulthandler
import json
import os
import socket
import sys
import threading
import time
import traceback
import uuid
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist

from stages.lib import files, stage
from stages.lib.distributed import collectives
from stages.lib.errors import UserError
from stages.lib.recipe import operation
from stages.lib.run_directory import journal
from stages.lib.training.faults import stacks

LOOK_SECONDS = 1.0  # between two looks at the clock
QUIET_SECONDS = 5.0  # no call is looked for before a phase has lasted so long: training that steps asks no file system
ANSWER_SECONDS = 10.0  # how long the ranks wait for each other's stacks
BACKSTOP_SECONDS = 5.0  # after its limit, when the thread itself cannot run, Python's own C code ends the process
SENTENCES = {
    "start": "no first step for {seconds:.0f} s since the start, at step {step}",
    "step": "no step for {seconds:.0f} s at step {step}",
    "save": "a save or an evaluation went on for {seconds:.0f} s at step {step}",
}


@dataclass(frozen=True, kw_only=True)
class WatchdogRecipe:
    """After how many minutes without progress a training ends, to be started again; null: never."""

    start: float | None = operation(30.0, above=0)
    """Minutes from the start of training to the end of its first step: loading and compiling are part of it."""

    step: float | None = operation(10.0, above=0)
    """Minutes a step may take."""

    save: float | None = operation(30.0, above=0)
    """Minutes a save or an evaluation may take."""


class Watchdog:
    """Watches the time that each phase takes, from now on ("start"), until `stop()`; all ranks make theirs together.

    `directory` is the run directory. When time is up, every rank writes its stacks, calls `on_hang(sentence)`, in the
    watchdog's thread, and ends with the exit code that it returns; with 75 when some rank gave no answer, so that
    torchrun ends that one. The first also writes an event.
    The time in which this process was suspended does not count. Where the main thread holds the interpreter's lock for
    ever, no thread can run: then its stacks go to stderr, and its exit code is 1.
    """

    def __init__(self, recipe, directory, on_hang):
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.directory, self._on_hang = Path(directory), on_hang
        self._limits = {
            name: None if minutes is None else minutes * 60
            for name, minutes in (("start", recipe.start), ("step", recipe.step), ("save", recipe.save))
        }
        shortest = min((limit for limit in self._limits.values() if limit is not None), default=float("inf"))
        self._look, self._quiet = min(LOOK_SECONDS, shortest / 4), min(QUIET_SECONDS, shortest / 2)
        self._call = _Call(self.directory / ".watchdog")
        self.phase("start", 0)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        if shortest != float("inf"):
            self._thread.start()

    def phase(self, name, step):
        """Say what begins now: "step" after each finished step, "save" before a save or an evaluation.

        The clock starts anew. Until the first call it is "start", so that the first step is part of that.
        """
        self._phase = (name, step, self._limits[name])  # a new object each time, by which the thread knows

    def stop(self):
        """End the watch."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()
        faulthandler.cancel_dump_traceback_later()
        if self.rank == 0:
            self._call.path.unlink(missing_ok=True)

    def _watch(self):
        phase, lasted, last = None, 0.0, time.monotonic()
        while not self._stopped.wait(self._look):
            now = time.monotonic()
            gap, last = now - last, now
            if phase is not self._phase:
                phase, lasted = self._phase, 0.0
            lasted += min(gap, 2 * self._look)  # a longer gap: the process was suspended
            name, step, limit = phase
            if limit is None:
                faulthandler.cancel_dump_traceback_later()
            else:
                faulthandler.dump_traceback_later(max(0.0, limit - lasted) + BACKSTOP_SECONDS, exit=True, file=2)
            if limit is not None and lasted > limit:
                self._end(self._call.make(_facts(self.rank, name, step, lasted)))
            elif lasted > self._quiet and (heard := self._call.heard()):
                self._end(heard)

    def _end(self, call):
        """Write the stacks, say why, wait for the others, and end the process, whatever fails on the way."""
        faulthandler.dump_traceback_later(3 * ANSWER_SECONDS, exit=True, file=2)  # a file system may be what hangs
        code, answered = stage.OUT_OF_TIME, False
        try:
            pattern = stacks.pattern(self.directory, call["stamp"])
            where = f"rank {call['rank']}, host {call['host']}"
            sentence = f"{SENTENCES[call['phase']].format(**call)} ({where}); stacks of the ranks: {pattern}"
            stacks.write(self.directory, call["stamp"], self.rank, f"{sentence}\n{self._here()}")
            if call["rank"] == self.rank:
                self._write_event(call)
            code = self._on_hang(sentence)
            answered = self._wait_for_all(pattern)
            # The others learn of it within one look. Until they end as well, the main thread may not run: it would see
            # their connections close, and tell of that. So wait in C, with the interpreter's lock.
            ctypes.PyDLL(None).usleep(int(2e6 * self._look))
        except Exception:  # nothing may keep a rank that hangs
            traceback.print_exc()
        finally:
            os._exit(code if answered else stage.OUT_OF_TIME)

    def _here(self):
        name, step, _ = self._phase
        host, process = socket.gethostname(), os.getpid()
        return f"rank {self.rank} of {self.world_size}, host {host}, process {process}, phase {name}, step {step}"

    def _write_event(self, call):
        entry = {"time": time.time(), "event": "hang", "world_size": self.world_size, **call}
        try:
            journal.append(self.directory / "events.jsonl", entry)
        except UserError as error:
            print(error, file=sys.stderr, flush=True)

    def _wait_for_all(self, pattern):
        """Whether the stacks of all ranks are there before the time for it is up."""
        until = time.monotonic() + ANSWER_SECONDS
        while time.monotonic() < until:
            if len(list(pattern.parent.glob(pattern.name))) == self.world_size:
                return True
            time.sleep(self._look)
        return False


class _Call:
    """The file by which the first rank whose time is up calls the others: a token of this start, then calls.

    A rank of an earlier start that is still about somewhere neither hears nor is heard. The file is there from the
    start and is opened at each look, since NFS may take a minute to show a new file, but asks for the content of a
    known one when it is opened.
    """

    def __init__(self, path):
        self.path = path
        self.token = collectives.broadcast_object(uuid.uuid4().hex)
        with collectives.raise_on_all_ranks():
            if dist.get_rank() == 0:
                with files.atomic(path, "w") as file:
                    file.write(f"{self.token}\n")

    def make(self, facts):
        """Call all ranks; returns the call that all answer, which is another rank's when that one was faster."""
        try:
            if self.path.read_text(encoding="utf-8").startswith(self.token) and not self.heard():
                journal.append(self.path, facts)
        except (OSError, UserError) as error:
            print(f"the other ranks could not be called: {error}", file=sys.stderr, flush=True)
        return self.heard() or facts

    def heard(self):
        """The facts of the first call; None where there is none."""
        try:
            token, *calls = self.path.read_text(encoding="utf-8").splitlines()
            return json.loads(calls[0]) if token == self.token and calls else None
        except (OSError, ValueError):  # not there, or half written
            return None


def _facts(rank, phase, step, seconds):
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    host = socket.gethostname()
    return {"stamp": stamp, "rank": rank, "host": host, "phase": phase, "step": step, "seconds": round(seconds, 1)}
