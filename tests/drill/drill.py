"""The drill: train once undisturbed, then again under disturbances, each followed by a new start."""

import random
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.drill import ledger
from tests.drill.kinds import KINDS, Moment
from tests.drill.processes import Fault, Training
from tests.helpers.data_fixtures import tiny_corpus
from tests.helpers.training import MODEL, MODELS, OPERATION, RECIPE, options

EVERY = 10  # steps between two checkpoints
STEPS_PER_KILL = 30
TAIL, LONG_TAIL = 20, 150  # steps after the last disturbance; a file `stop` is looked for only once per second
SHARDINGS, HYBRIDS = ("full", "grad", "none"), ("hybrid-full", "hybrid-grad")  # the latter need 2 x 2 ranks


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Options of a drill: `ranks` of the undisturbed run, and of the disturbed one if `worlds` is empty."""

    directory: Path
    kills: int = 20
    ranks: int = 2
    worlds: tuple = ()
    kinds: tuple = tuple(KINDS)
    architecture: str = "llama"
    optimizer: str = "adamw"
    seed: int = 0

    @property
    def steps(self):
        """The number of steps, which grows with the number of kills."""
        return STEPS_PER_KILL * self.kills + self.tail

    @property
    def tail(self):
        """The last steps, in which no disturbance begins: it would come too late."""
        return LONG_TAIL if any(KINDS[kind].saves for kind in self.kinds) else TAIL

    @property
    def recipe(self):
        """The recipe of both runs. With changing world sizes losses are comparable only in float64, and with a small
        learning rate: a large one amplifies rounding 10 times per 40 steps.
        """
        optimizer = RECIPE["optimizer"] | {"name": self.optimizer}
        recipe = RECIPE | {"model": MODEL | MODELS[self.architecture], "optimizer": optimizer}
        if self.worlds:
            return recipe | {"dtype": "float64", "optimizer": optimizer | {"learning_rate": 1e-3}}
        return recipe | {"dtype": "float32"}


@dataclass
class Disturbance:
    """A disturbance, and the number of steps that the next start had to train again."""

    kind: str
    ranks: int
    code: int
    lost: int = 0


@dataclass
class Drill:
    """Both runs, their disturbances, and `startups`: seconds from a start to its first step."""

    plan: Plan
    say: object = print
    done: list = field(default_factory=list)
    startups: list = field(default_factory=list)

    def __post_init__(self):
        self.rng = random.Random(self.plan.seed)
        self.undisturbed, self.disturbed = self.plan.directory / "undisturbed", self.plan.directory / "disturbed"

    def run(self):
        """Run both. Raises Fault if a training behaves wrongly."""
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
        """Return one of `choices` per kill, all about equally often, in random order."""
        chosen = [choices[number % len(choices)] for number in range(self.plan.kills)]
        self.rng.shuffle(chosen)
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
            raise Fault(f"the undisturbed training exited with {code}: {training.tail()}")
        self._note(seen)

    def _disturb(self, name, ranks, left):
        kind, seen = KINDS[name], _Seen(self.disturbed)
        ranks = max(ranks, kind.least_ranks)
        operation = kind.operation | self._shape(ranks)
        more = kind.options(self.rng) if kind.options else ()
        with self._start(self.disturbed, ranks, more, **operation) as training:
            step = self._step(seen.before, left)
            moment = Moment(training, self.disturbed, seen.step, step, self._delay(), self.rng)
            code = kind.disturb(moment)
        self._note(seen)
        self.done.append(Disturbance(name, ranks, code))
        self.say(f"{len(self.done)}/{self.plan.kills} {name} on {ranks} ranks at step {seen.step()}: exit code {code}")
        kind.check(code, moment)

    def _note(self, seen):
        """Record how long the start took, and the steps that the last disturbance cost, if a step was trained."""
        if seen.entries():
            self.startups.append(seen.first["time"] - seen.begun)
            if self.done:
                last = self.done[-1]
                last.lost = seen.before - (seen.first["step"] - 1)
                if last.lost and KINDS[last.kind].saves:
                    raise Fault(f"{last.kind} lost {last.lost} steps: it must save before it ends")

    def _step(self, reached, left):
        """Return the step of the next disturbance; disturbances are spread over the run."""
        last = self.plan.steps - self.plan.tail
        return min(reached + round(self.rng.uniform(0.1, 1.9) * max(0, last - reached) / left), last)

    def _delay(self):
        """Return for one disturbance in four its delay after the start in seconds, before the first step; else None."""
        return self.rng.uniform(0.2, self.startups[0]) if self.rng.random() < 0.25 else None

    def _shape(self, ranks):
        """Return another micro-batch and sharding if world sizes change."""
        if not self.plan.worlds:
            return {}
        share = RECIPE["global_batch_size"] // ranks
        fitting = [size for size in range(1, share + 1) if share % size == 0]
        kinds = SHARDINGS + HYBRIDS * (ranks == 4)
        shape = {"micro_batch_size": self.rng.choice(fitting), "sharding": self.rng.choice(kinds)}
        return shape | ({"shard_degree": 2} if shape["sharding"] in HYBRIDS else {})


class _Seen:
    """The metrics that one start adds to a run: `before` is the last step of earlier starts."""

    def __init__(self, results):
        self.results, self.begun = results, time.time()
        entries, self.position = ledger.read(results)
        self.before = entries[-1]["step"] if entries else 0
        self.first = self.last = None

    def entries(self):
        """Read new entries; returns whether a step was trained since the start."""
        entries, self.position = ledger.read(self.results, self.position)
        if entries:
            self.first, self.last = self.first or entries[0], entries[-1]
        return self.first is not None

    def step(self):
        """Return the last step of this start; 0 before its first."""
        return self.last["step"] if self.entries() else 0
