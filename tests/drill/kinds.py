"""The kinds of disturbance of a training: one small function each, in one table.

Each waits for its moment in a running training, disturbs it, and returns the launcher's exit code.
"""

import contextlib
import random
import resource
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from stages.lib.checkpoints.commit import COMMIT, MAKING
from tests.drill.processes import Fault, Training


@dataclass
class Moment:
    """A running training, and the time of its disturbance: at a step, or `delay` seconds after the start."""

    training: Training
    results: Path
    reached: Callable[[], int]
    step: int
    delay: float | None
    rng: random.Random

    @property
    def directory(self):
        """The run directory; None if it does not exist yet."""
        return next(iter((self.results / "train").glob("*")), None)

    def wait(self, at_any_time=False):
        """Wait for the moment: within a step, or with `at_any_time` possibly during the start."""
        if at_any_time and self.delay is not None:
            self.training.wait_until(lambda: time.time() - self.training.begun > self.delay)
        else:
            self.training.wait_until(lambda: self.reached() >= self.step)
            time.sleep(self.rng.uniform(0, 0.05))


@dataclass(frozen=True)
class Kind:
    """A kind of disturbance.

    `disturb(moment)` returns the exit code, which must be one of `codes`. `damage(run directory, rng)` changes files
    afterwards. `options(rng)` are further options of the stage, and `operation` further keys of its recipe. A kind that
    `saves` loses no step, and writes the reason of the stop to stopped.json.
    """

    disturb: Callable
    codes: tuple
    damage: Callable | None = None
    options: Callable | None = None
    operation: dict = field(default_factory=dict)
    saves: bool = False
    least_ranks: int = 1

    def check(self, code, moment):
        """Check the exit code, and damage the files. Raises Fault for an unexpected exit code."""
        if code not in self.codes:
            expected = " or ".join(map(str, self.codes))
            raise Fault(f"the exit code must be {expected}, got {code}: {moment.training.tail()}")
        if self.saves and not (moment.directory / "stopped.json").exists():
            raise Fault("a training that was stopped wrote no stopped.json")
        if self.damage and moment.directory:
            self.damage(moment.directory, moment.rng)


def kill_one_rank(moment):
    """SIGKILL of one rank, as by the kernel when memory runs out: torchrun ends the others."""
    moment.wait(at_any_time=True)
    moment.training.wait_until(moment.training.ranks)
    ranks = moment.training.ranks()
    moment.training.send(ranks[moment.rng.choice(sorted(ranks))], signal.SIGKILL)
    return moment.training.end()


def kill_all(moment):
    """SIGKILL of the launcher, torchrun's agent and all ranks, as when a machine is lost."""
    moment.wait(at_any_time=True)
    moment.training.kill()
    return moment.training.end()


def kill_while_saving(moment):
    """The same during a save: a checkpoint is written beside its place."""
    moment.wait()
    moment.training.wait_until(lambda: _is_saving(moment))
    time.sleep(moment.rng.uniform(0, 0.02))
    moment.training.kill()
    return moment.training.end()


def _is_saving(moment):
    """Return whether this start is writing a checkpoint; directories of earlier kills are older."""
    for path in (moment.directory / "checkpoints").glob(f".*{MAKING}"):
        with contextlib.suppress(FileNotFoundError):  # deleted in between
            if path.stat().st_mtime > moment.training.begun:
                return True
    return False


def terminate(moment):
    """SIGTERM to the launcher, as by Slurm at the time limit, or by a person."""
    moment.wait()
    moment.training.send(moment.training.process.pid, signal.SIGTERM)
    return moment.training.end()


def signal_one_rank(moment):
    """SIGUSR1 to one rank: that rank tells the others."""
    moment.wait()
    ranks = moment.training.ranks()
    moment.training.send(ranks[moment.rng.choice(sorted(ranks))], signal.SIGUSR1)
    return moment.training.end()


def write_stop_file(moment):
    """Write a file `stop` in the run directory."""
    moment.wait()
    (moment.directory / "stop").touch()
    return moment.training.end()


def wait_for_the_deadline(moment):
    """Only wait: the training was started with a deadline."""
    return moment.training.end()


def a_deadline(rng):
    """Return options with a deadline before the first step, or soon after."""
    return ["--minutes", str(rng.uniform(0.3, 1.5) / 60)]


def hang(moment):
    """SIGSTOP of one rank: the others wait for it in a collective, until their watchdogs end them."""
    moment.wait()
    ranks = moment.training.ranks()
    stopped = moment.rng.choice(sorted(ranks))
    moment.training.send(ranks[stopped], signal.SIGSTOP)
    moment.training.wait_until(lambda: len(moment.training.ranks()) < len(ranks))
    moment.training.send(ranks[stopped], signal.SIGCONT)  # else torchrun waits 30 s before it kills that rank
    code = moment.training.end()
    written = {path.stem.rpartition("-rank")[2] for path in (moment.directory / "hang").glob("*.txt")}
    if not written >= {str(rank) for rank in ranks if rank != stopped}:
        raise Fault(f"only stacks of the ranks {sorted(written)} were written when rank {stopped} hung")
    shutil.rmtree(moment.directory / "hang")
    return code


def fill_the_disk(moment):
    """Limit file sizes a little above that of the metrics: writing a line or a checkpoint fails."""
    moment.wait()
    size = (moment.directory / "metrics.jsonl").stat().st_size + moment.rng.randint(0, 5000)
    for process in moment.training.ranks().values():
        _, hard = resource.prlimit(process, resource.RLIMIT_FSIZE)
        resource.prlimit(process, resource.RLIMIT_FSIZE, (size, hard))
    return moment.training.end()


def _newest(directory):
    """Return the newest committed checkpoint, or None."""
    marked = sorted((directory / "checkpoints").glob(f"[0-9]*/{COMMIT}"))
    return marked[-1].parent if marked else None


def truncate(directory, rng):
    """Truncate a random file of the newest checkpoint, possibly its commit marker."""
    if newest := _newest(directory):
        file = rng.choice(sorted(newest.iterdir()))
        content = file.read_bytes()
        file.write_bytes(content[: rng.randrange(len(content))])


def flip(directory, rng):
    """Flip one bit in a file of the newest checkpoint."""
    if newest := _newest(directory):
        file = rng.choice(sorted(path for path in newest.iterdir()))
        content = bytearray(file.read_bytes())
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        file.write_bytes(content)


def unmark(directory, _):
    """Delete the commit marker of the newest checkpoint."""
    if newest := _newest(directory):
        (newest / COMMIT).unlink()


KILLED = (-signal.SIGKILL,)
STOPPED = (75,)
KINDS = {
    "kill-rank": Kind(kill_one_rank, (1,)),
    "kill-all": Kind(kill_all, KILLED),
    "kill-saving": Kind(kill_while_saving, KILLED),
    "terminate": Kind(terminate, STOPPED, saves=True),
    "signal-rank": Kind(signal_one_rank, STOPPED, saves=True),
    "stop-file": Kind(write_stop_file, STOPPED, saves=True),
    "deadline": Kind(wait_for_the_deadline, STOPPED, options=a_deadline, saves=True),
    "hang": Kind(hang, STOPPED, operation={"watchdog": {"step": 0.1, "save": 0.1}}, least_ranks=2),
    "full-disk": Kind(fill_the_disk, (2,)),
    "truncated": Kind(kill_all, KILLED, truncate),
    "flipped": Kind(kill_all, KILLED, flip),
    "unmarked": Kind(kill_all, KILLED, unmark),
}
