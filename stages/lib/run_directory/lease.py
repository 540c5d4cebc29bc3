"""The lease on a run directory: one trainer at a time, on any host.

lease.json holds who holds it (`Holder`) and its heartbeat. It is created complete, by a hard link that fails if the
file exists. Shared file systems support that, while flock may be missing or local to a node.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import threading
import time
import uuid
from pathlib import Path

from stages.lib import files
from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.run_directory.holder import Holder

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
