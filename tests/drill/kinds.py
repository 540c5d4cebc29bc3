"""The ways in which a training is disturbed: a small function each, in one table.

Each waits for its moment in a running training, does what it does, and returns the launcher's exit code.
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

from stages.lib.checkpoints import dcp
from tests.drill.processes import Fault, Training


@dataclass
class Moment:
    """A running training, and when it shall be disturbed: at a step, or `delay` seconds after it was started."""

    training: Training
    results: Path
    reached: Callable[[], int]
    step: int
    delay: float | None
    chance: random.Random

    @property
    def directory(self):
        """The run directory; None before there is one."""
        return next(iter((self.results / "train").glob("*")), None)

    def wait(self, at_any_time=False):
        """Wait for the moment: in the middle of a step, or of the start where that is wanted and `at_any_time`."""
        if at_any_time and self.delay is not None:
            self.training.wait_until(lambda: time.time() - self.training.begun > self.delay)
        else:
            self.training.wait_until(lambda: self.reached() >= self.step)
            time.sleep(self.chance.uniform(0, 0.05))


@dataclass(frozen=True)
class Kind:
    """A way to disturb a training.

    `disturb(moment)` returns the exit code, which must be one of `codes`. `damage(run directory, chance)` is done to
    what lies on the disk afterwards. `options(chance)` are further options of the stage, and `operation` further keys
    of its recipe. A kind that `saves` loses no step, and says why it stopped in stopped.json.
    """

    disturb: Callable
    codes: tuple
    damage: Callable | None = None
    options: Callable | None = None
    operation: dict = field(default_factory=dict)
    saves: bool = False
    least_ranks: int = 1

    def check(self, code, moment):
        """Hold the exit code, and damage what is left. Raises Fault for another exit code than it should be."""
        if code not in self.codes:
            wanted = " or ".join(map(str, self.codes))
            raise Fault(f"the exit code was {code}, not {wanted}: {moment.training.tail()}")
        if self.saves and not (moment.directory / "stopped.json").exists():
            raise Fault("a training that was asked to stop left no stopped.json")
        if self.damage and moment.directory:
            self.damage(moment.directory, moment.chance)


def kill_one_rank(moment):
    """SIGKILL of one rank, as by the kernel when memory is out: torchrun ends the others."""
    moment.wait(at_any_time=True)
    moment.training.wait_until(moment.training.ranks)
    ranks = moment.training.ranks()
    moment.training.send(ranks[moment.chance.choice(sorted(ranks))], signal.SIGKILL)
    return moment.training.end()


def kill_all(moment):
    """SIGKILL of the launcher, torchrun's agent and all ranks, as when a machine is lost."""
    moment.wait(at_any_time=True)
    moment.training.kill()
    return moment.training.end()


def kill_while_saving(moment):
    """The same in the middle of a save: a checkpoint's directory is there, and its marker is not."""
    moment.wait()
    moment.training.wait_until(lambda: _is_saving(moment))
    time.sleep(moment.chance.uniform(0, 0.02))
    moment.training.kill()
    return moment.training.end()


def _is_saving(moment):
    """Whether this start is writing a checkpoint; what an earlier kill left is older."""
    for path in (moment.directory / "checkpoints").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError):  # deleted in between
            if path.stat().st_mtime > moment.training.begun and not (path / dcp.COMMIT).exists():
                return True
    return False


def terminate(moment):
    """SIGTERM to the launcher, as by Slurm at the time limit, or by a person."""
    moment.wait()
    moment.training.send(moment.training.process.pid, signal.SIGTERM)
    return moment.training.end()


def signal_one_rank(moment):
    """SIGUSR1 to one rank: the others hear of it from that one."""
    moment.wait()
    ranks = moment.training.ranks()
    moment.training.send(ranks[moment.chance.choice(sorted(ranks))], signal.SIGUSR1)
    return moment.training.end()


def write_stop_file(moment):
    """A file `stop` in the run directory."""
    moment.wait()
    (moment.directory / "stop").touch()
    return moment.training.end()


def wait_for_the_deadline(moment):
    """Nothing but the deadline that the training was given."""
    return moment.training.end()


def a_deadline(chance):
    """Options with a deadline that is over before the first step, or soon after."""
    return ["--minutes", str(chance.uniform(0.3, 1.5) / 60)]


def hang(moment):
    """SIGSTOP of one rank: the others wait for it in a collective, until their watchdogs end them."""
    moment.wait()
    ranks = moment.training.ranks()
    stopped = moment.chance.choice(sorted(ranks))
    moment.training.send(ranks[stopped], signal.SIGSTOP)
    moment.training.wait_until(lambda: len(moment.training.ranks()) < len(ranks))
    moment.training.send(ranks[stopped], signal.SIGCONT)  # or torchrun would wait 30 s before it kills that one
    code = moment.training.end()
    written = {path.stem.rpartition("-rank")[2] for path in (moment.directory / "hang").glob("*.txt")}
    if not written >= {str(rank) for rank in ranks if rank != stopped}:
        raise Fault(f"stacks of the ranks {sorted(written)} alone were written when rank {stopped} hung")
    shutil.rmtree(moment.directory / "hang")
    return code


def fill_the_disk(moment):
    """No file grows beyond a limit, a little above the metrics' size: that fails in a line, or in a checkpoint."""
    moment.wait()
    size = (moment.directory / "metrics.jsonl").stat().st_size + moment.chance.randint(0, 5000)
    for process in moment.training.ranks().values():
        _, hard = resource.prlimit(process, resource.RLIMIT_FSIZE)
        resource.prlimit(process, resource.RLIMIT_FSIZE, (size, hard))
    return moment.training.end()


def _newest(directory):
    """The newest checkpoint that has a marker; None where there is none."""
    marked = sorted((directory / "checkpoints").glob(f"[0-9]*/{dcp.COMMIT}"))
    return marked[-1].parent if marked else None


def truncate(directory, chance):
    """Cut any file of the newest checkpoint short, its marker too."""
    if newest := _newest(directory):
        file = chance.choice(sorted(newest.iterdir()))
        content = file.read_bytes()
        file.write_bytes(content[: chance.randrange(len(content))])


def flip(directory, chance):
    """Flip one bit in a file of the newest checkpoint."""
    if newest := _newest(directory):
        file = chance.choice(sorted(path for path in newest.iterdir()))
        content = bytearray(file.read_bytes())
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        file.write_bytes(content)


def unmark(directory, _):
    """Take the newest checkpoint's marker away."""
    if newest := _newest(directory):
        (newest / dcp.COMMIT).unlink()


KILLED = (-signal.SIGKILL,)
ASKED = (75,)
KINDS = {
    "kill-rank": Kind(kill_one_rank, (1,)),
    "kill-all": Kind(kill_all, KILLED),
    "kill-saving": Kind(kill_while_saving, KILLED),
    "terminate": Kind(terminate, ASKED, saves=True),
    "signal-rank": Kind(signal_one_rank, ASKED, saves=True),
    "stop-file": Kind(write_stop_file, ASKED, saves=True),
    "deadline": Kind(wait_for_the_deadline, ASKED, options=a_deadline, saves=True),
    "hang": Kind(hang, ASKED, operation={"watchdog": {"step": 0.1, "save": 0.1}}, least_ranks=2),
    "full-disk": Kind(fill_the_disk, (2,)),
    "truncated": Kind(kill_all, KILLED, truncate),
    "flipped": Kind(kill_all, KILLED, flip),
    "unmarked": Kind(kill_all, KILLED, unmark),
}
