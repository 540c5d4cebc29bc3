"""A watchdog for hangs: a thread per rank that ends a training without progress, with the stacks of all ranks.

A rank that does not reach a collective blocks all others, so the rank that hangs may not be the one whose limit passes.
The first rank whose limit passes calls all ranks through a file in the run directory, and each writes its stacks. Then
they end, to be started again: most hangs (a lost packet, a faulty network card, a stuck file system) do not return.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import pickle
import socket
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from stages.lib import files, stage
from stages.lib.distributed import collectives
from stages.lib.errors import UserError
from stages.lib.run_directory import journal
from stages.lib.training.metrics.callback import Callback
from stages.lib.training.settings.recipe import WatchdogRecipe

RECORDERS = {"nccl": "_dump_nccl_trace", "gloo": "_dump_fr_trace"}  # the former exists only in builds for GPUs
RECORDER_SECONDS = 10.0  # a hanging NCCL may block its recorder too; a first dump takes a second of an idle core


def stacks_pattern(directory: Path, stamp: str) -> Path:
    """Return the path of the stacks of one hang, with a * for the rank."""
    return directory / "hang" / f"{stamp}-rank*.txt"


def write_stacks(directory: Path, stamp: str, rank: int, head: str) -> None:
    """Write `head`, all threads' names and stacks, and the collectives; to stderr if no file can be written."""
    path = directory / "hang" / f"{stamp}-rank{rank}.txt"
    head += "\n\n" + "".join(f"0x{thread.ident:016x} {thread.name}\n" for thread in threading.enumerate())
    try:
        path.parent.mkdir(exist_ok=True)
        recording = threading.Thread(target=_write_collectives, args=(path.parent, stamp, rank), daemon=True)
        recording.start()
        recording.join(RECORDER_SECONDS)
        with open(path.with_suffix(".writing"), "w", encoding="utf-8") as file:
            print(head, file=file, flush=True)
            faulthandler.dump_traceback(file, all_threads=True)
        path.with_suffix(".writing").rename(path)  # complete when other ranks see it
    except OSError as error:
        print(f"{path} could not be written: {error.strerror}\n{head}", file=sys.stderr, flush=True)
        faulthandler.dump_traceback(2, all_threads=True)


def _write_collectives(directory: Path, stamp: str, rank: int) -> None:
    for backend, function in RECORDERS.items():
        dump = getattr(torch._C._distributed_c10d, function, None)
        content = dump() if dump else None
        if content and pickle.loads(content)["entries"]:  # noqa: S301 (of this process)
            (directory / f"{stamp}-{backend}-rank{rank}").write_bytes(content)


LOOK_SECONDS = 1.0
"""Seconds between two checks."""

QUIET_SECONDS = 5.0
"""Seconds of a phase before the file of calls is read: a training that makes steps reads no file system."""

ANSWER_SECONDS = 15.0
"""Seconds for which the ranks wait for each other's stacks."""

BACKSTOP_SECONDS = 5.0
"""Seconds after the limit at which Python's C code ends the process, if the thread itself cannot run."""

SENTENCES = {
    "start": "no first step for {seconds:.0f} s since the start, at step {step}",
    "step": "no step for {seconds:.0f} s at step {step}",
    "save": "a save, or a pass of an evaluation, did not end within {seconds:.0f} s at step {step}",
}


class Watchdog(Callback):
    """Watches the duration of each phase until `close()`, the first being "start"; all ranks make theirs together.

    `directory`: the run directory. When a limit passes, every rank writes its stacks, calls `on_hang(sentence)` in the
    watchdog's thread, and ends with the exit code that it returns; with 75 if a rank did not answer, so that torchrun
    ends that one. The first rank to notice also writes an event.
    Time in which the process was suspended does not count. If the main thread never releases the GIL, no thread can
    run: then its stacks go to stderr, and its exit code is 1.
    """

    def __init__(self, recipe: WatchdogRecipe, directory: Path | str, on_hang: Callable[[str], int]) -> None:
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.directory, self._on_hang = Path(directory), on_hang
        self._limits = {
            name: None if minutes is None else minutes * 60
            for name, minutes in (("start", recipe.start), ("step", recipe.step), ("save", recipe.save))
        }
        shortest = min((limit for limit in self._limits.values() if limit is not None), default=float("inf"))
        self._look, self._quiet = min(LOOK_SECONDS, shortest / 4), min(QUIET_SECONDS, shortest / 2)
        self._call = _Call(self.directory)
        self.phase("start", 0)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        if shortest != float("inf"):
            self._thread.start()

    def phase(self, name: str, step: int) -> None:
        """Begin a phase and restart the clock: "step" after each step, "save" before a save or an evaluation.

        The phase is "start" until the first call, so that the first step is part of it.
        """
        self._phase = (name, step, self._limits[name])  # a new object each time: the thread compares identities

    def evaluating(self, step: int, done: int, total: int) -> None:
        """Restart the clock: an evaluation may be long, and one pass of it not."""
        self.phase("save", step)

    def close(self) -> None:
        """End the watch."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()
        faulthandler.cancel_dump_traceback_later()
        if self.rank == 0:
            self._call.path.unlink(missing_ok=True)

    def _watch(self) -> None:
        phase: tuple[str, int, float | None] | None = None
        lasted, last = 0.0, time.monotonic()
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
                stamp, host = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()), socket.gethostname()
                where = {"stamp": stamp, "rank": self.rank, "host": host, "phase": name, "step": step}
                self._end(self._call.make(where | {"seconds": round(lasted, 1)}))
            elif lasted > self._quiet and (call := self._call.read()):
                self._end(call)

    def _end(self, call: dict[str, Any]) -> None:
        """Write the stacks and the reason, wait for the others, and end the process, whatever fails on the way."""
        faulthandler.dump_traceback_later(3 * ANSWER_SECONDS, exit=True, file=2)  # a file system may be what hangs
        code, answered = stage.OUT_OF_TIME, False
        try:
            pattern = stacks_pattern(self.directory, call["stamp"])
            where = f"rank {call['rank']}, host {call['host']}"
            sentence = f"{SENTENCES[call['phase']].format(**call)} ({where}); stacks of the ranks: {pattern}"
            name, step, _ = self._phase
            own = f"rank {self.rank} of {self.world_size}, host {socket.gethostname()}, process {os.getpid()}"
            write_stacks(self.directory, call["stamp"], self.rank, f"{sentence}\n{own}, phase {name}, step {step}")
            if call["rank"] == self.rank:
                entry = {"time": time.time(), "event": "hang", "world_size": self.world_size, **call}
                try:
                    journal.append(self.directory / "events.jsonl", entry)
                except UserError as error:
                    print(error, file=sys.stderr, flush=True)
            code = self._on_hang(sentence)
            answered = self._wait_for_all(pattern)
            # The others read the call within one check. Until they end as well, the main thread must not run: it would
            # report that their connections closed. So wait in C, with the GIL held.
            ctypes.PyDLL(None).usleep(int(2e6 * self._look))
        except Exception:  # nothing may keep a hung rank alive
            traceback.print_exc()
        finally:
            os._exit(code if answered else stage.OUT_OF_TIME)

    def _wait_for_all(self, pattern: Path) -> bool:
        """Wait for the stacks of all ranks; return False if some are missing after ANSWER_SECONDS."""
        until = time.monotonic() + ANSWER_SECONDS
        while time.monotonic() < until:
            if len(list(pattern.parent.glob(pattern.name))) == self.world_size:
                return True
            time.sleep(self._look)
        return False


class _Call:
    """The file by which the first rank whose limit passes calls the others: .watchdog.<random>, with a call per line.

    Each start has its own, since ranks of an earlier start may still run somewhere. The file exists from the start and
    is opened at each check: NFS may take a minute to show a new file, but fetches the content of a known one when it is
    opened.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / f".watchdog.{collectives.broadcast_object(uuid.uuid4().hex)}"
        with collectives.raise_on_all_ranks():
            if dist.get_rank() == 0:
                with files.atomic(self.path):
                    pass

    def make(self, facts: dict[str, Any]) -> dict[str, Any]:
        """Call all ranks; return the call that all answer, which is another rank's if that one was faster."""
        try:
            if self.path.exists() and not self.read():
                journal.append(self.path, facts)
        except (OSError, UserError) as error:
            print(f"the other ranks could not be called: {error}", file=sys.stderr, flush=True)
        return self.read() or facts

    def read(self) -> dict[str, Any] | None:
        """Return the facts of the first call, None if nobody called."""
        try:
            return json.loads(self.path.read_text(encoding="utf-8").split("\n", 1)[0])
        except (OSError, ValueError):  # missing, empty, or half written
            return None
