"""The drill: train once undisturbed, then again under disturbances, each followed by a new start."""

import random
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.drill import ledger
from tests.drill.kinds import KINDS, Moment
from tests.drill.processes import Fault, Training
from tests.helpers.data_fixtures import tiny_corpus
from tests.helpers.training import OPERATION, RECIPE, options

EVERY = 10  # steps between two checkpoints
STEPS_A_KILL = 30
TAIL, LONG_TAIL = 20, 150  # steps after the last disturbance; a file `stop` is looked for once a second only
SHARDINGS, HYBRIDS = ("full", "grad", "none"), ("hybrid-full", "hybrid-grad")  # the latter need 2 x 2 ranks


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is drilled: `ranks` of the undisturbed run, and of the disturbed one where no `worlds` are given."""

    directory: Path
    kills: int = 20
    ranks: int = 2
    worlds: tuple = ()
    kinds: tuple = tuple(KINDS)
    seed: int = 0

    @property
    def steps(self):
        """Steps of the run: more with more kills."""
        return STEPS_A_KILL * self.kills + self.tail

    @property
    def tail(self):
        """The steps of it in which nothing is begun any more, or it would come too late."""
        return LONG_TAIL if any(KINDS[kind].saves for kind in self.kinds) else TAIL

    @property
    def recipe(self):
        """The recipe of both runs. Where world sizes change, losses can be compared in float64 alone, and with a small
        learning rate: a large one amplifies rounding 10 times each 40 steps.
        """
        if self.worlds:
            return RECIPE | {"dtype": "float64", "optimizer": {"learning_rate": 1e-3}}
        return RECIPE | {"dtype": "float32"}


@dataclass
class Disturbance:
    """What was done, and how many trained steps the next start had to train again."""

    kind: str
    ranks: int
    code: int
    lost: int = 0


@dataclass
class Drill:
    """Both runs, and what was seen: `startups` are seconds from a start to its first step."""

    plan: Plan
    say: object = print
    done: list = field(default_factory=list)
    startups: list = field(default_factory=list)

    def __post_init__(self):
        self.chance = random.Random(self.plan.seed)
        self.undisturbed, self.disturbed = self.plan.directory / "undisturbed", self.plan.directory / "disturbed"

    def run(self):
        """Do both. Raises Fault where a training does what it must not do."""
        begun = time.monotonic()
        self.corpus = tiny_corpus(self.plan.directory / "corpus")
        self._finish(self.undisturbed)
        self.say(f"undisturbed: {self.plan.steps} steps on {self.plan.ranks} ranks")
        kinds, worlds = self._shuffled(self.plan.kinds), self._shuffled(self.plan.worlds or [self.plan.ranks])
        for number, (name, ranks) in enumerate(zip(kinds, worlds, strict=True)):
            self._disturb(name, ranks, self.plan.kills - number)
        self._finish(self.disturbed)
        self.seconds = time.monotonic() - begun

    def _shuffled(self, choices):
        """One of `choices` for each kill, all about equally often, in random order."""
        chosen = [choices[number % len(choices)] for number in range(self.plan.kills)]
        self.chance.shuffle(chosen)
        return chosen

    def _start(self, results, ranks, more=(), **operation):
        operation = {"steps": self.plan.steps, "checkpoint": OPERATION["checkpoint"] | {"every": EVERY}, **operation}
        arguments = options(self.corpus, results, self.plan.steps, recipe=self.plan.recipe, **operation)
        return Training(ranks, [*arguments, *more], results)

    def _finish(self, results):
        seen = _Seen(results)
        with self._start(results, self.plan.ranks) as training:
            code = training.end()
        if code:
            raise Fault(f"a training that nothing disturbed ended with {code}: {training.tail()}")
        self._note(seen)

    def _disturb(self, name, ranks, left):
        kind, seen = KINDS[name], _Seen(self.disturbed)
        ranks = max(ranks, kind.least_ranks)
        operation = kind.operation | self._shape(ranks)
        more = kind.options(self.chance) if kind.options else ()
        with self._start(self.disturbed, ranks, more, **operation) as training:
            step = self._step(seen.before, left)
            moment = Moment(training, self.disturbed, seen.step, step, self._delay(), self.chance)
            code = kind.disturb(moment)
        self._note(seen)
        self.done.append(Disturbance(name, ranks, code))
        self.say(f"{len(self.done)}/{self.plan.kills} {name} on {ranks} ranks at step {seen.step()}: exit code {code}")
        kind.check(code, moment)

    def _note(self, seen):
        """Note how long the start took, and what the disturbance before it had cost, if it came to a step."""
        if seen.entries():
            self.startups.append(seen.first["time"] - seen.begun)
            if self.done:
                last = self.done[-1]
                last.lost = seen.before - (seen.first["step"] - 1)
                if last.lost and KINDS[last.kind].saves:
                    raise Fault(f"{last.kind} lost {last.lost} steps: it must save before it ends")

    def _step(self, reached, left):
        """The step at which to disturb next, such that the disturbances spread over the run."""
        last = self.plan.steps - self.plan.tail
        return min(reached + round(self.chance.uniform(0.1, 1.9) * max(0, last - reached) / left), last)

    def _delay(self):
        """For one in four: the seconds after the launcher's start at which to disturb, before the first step."""
        return self.chance.uniform(0.2, self.startups[0]) if self.chance.random() < 0.25 else None

    def _shape(self, ranks):
        """Where world sizes change, a start has another micro-batch and sharding too."""
        if not self.plan.worlds:
            return {}
        share = RECIPE["global_batch_size"] // ranks
        fitting = [size for size in range(1, share + 1) if share % size == 0]
        kinds = SHARDINGS + HYBRIDS * (ranks == 4)
        shape = {"micro_batch_size": self.chance.choice(fitting), "sharding": self.chance.choice(kinds)}
        return shape | ({"shard_degree": 2} if shape["sharding"] in HYBRIDS else {})


class _Seen:
    """What one start adds to the metrics of a run: `before` is the last step that is there already."""

    def __init__(self, results):
        self.results, self.begun = results, time.time()
        entries, self.position = ledger.read(results)
        self.before = entries[-1]["step"] if entries else 0
        self.first = self.last = None

    def entries(self):
        """Read on; whether a step was trained since the start."""
        entries, self.position = ledger.read(self.results, self.position)
        if entries:
            self.first, self.last = self.first or entries[0], entries[-1]
        return self.first is not None

    def step(self):
        """The step that this start is at; 0 before its first."""
        return self.last["step"] if self.entries() else 0
