"""The checks of a drill, and the table that it prints at the end."""

import json
import statistics

from stages.lib.checkpoints.commit import COMMIT
from tests.drill import ledger
from tests.helpers.training import RECIPE, milestone, run_directory, weights_of

TOLERANCE = 1e-9  # of a loss in float64 between world sizes: hundreds of times the measured difference


class Verdict:
    """Comparison of the disturbed run of a finished drill with the undisturbed one."""

    def __init__(self, drill):
        self.drill, self.steps = drill, drill.plan.steps
        self.entries, _ = ledger.read(drill.disturbed)
        self.undisturbed, _ = ledger.read(drill.undisturbed)
        self.ledger_faults = [
            *ledger.faults(self.entries, self.steps, RECIPE["global_batch_size"]),
            *(
                f"undisturbed: {fault}"
                for fault in ledger.faults(self.undisturbed, self.steps, RECIPE["global_batch_size"])
            ),
        ]

    def faults(self):
        """Return a sentence per fault."""
        if self.ledger_faults:
            return self.ledger_faults
        return [*self._numbers(), *self._weights(), *self._leftovers()]

    def _numbers(self):
        worlds = self.drill.plan.worlds
        compared, allowed = (("loss",), TOLERANCE) if worlds else (("loss", "grad_norm"), 0)
        self.differences = {name: ledger.difference(self.entries, self.undisturbed, name) for name in compared}
        for name, difference in self.differences.items():
            if not difference <= allowed:
                yield f"{name} differs by {difference:.3g} from the undisturbed run's, more than {allowed:g}"

    def _weights(self):
        """Compare weights and identity of the milestone, which are equal if the world size did not change."""
        if self.drill.plan.worlds:
            return
        places = (self.drill.disturbed, self.drill.undisturbed)
        if len({json.dumps(weights_of(place, self.steps), sort_keys=True) for place in places}) > 1:
            yield "the final weights are not the undisturbed run's"
        elif len({json.dumps(_identity(place, self.steps)) for place in places}) > 1:
            yield "the milestone's identity is not the undisturbed run's"

    def _leftovers(self):
        directory = run_directory(self.drill.disturbed)
        for name in ("lease.json", "stop", "stopped.json", ".watchdog*"):
            for path in directory.glob(name):
                yield f"{path} was not deleted"
        for path in sorted((directory / "checkpoints").iterdir()):
            if path.name.startswith(".") or not (path / COMMIT).exists():
                yield f"{path} is no complete checkpoint, and was not deleted"

    def table(self):
        """Return a table of the disturbances and the steps they cost, as text."""
        done = self.drill.done
        lines = [f"{'kind':<12} {'kills':>5} {'steps lost':>10}  exit codes"]
        kinds = sorted({one.kind for one in done})
        lines += [_row(kind, [one for one in done if one.kind == kind]) for kind in kinds]
        lines.append(_row("all", done))
        worlds = sorted({one.ranks for one in done})
        startup = statistics.median(self.drill.startups)
        lines.append(
            f"{len(done) + 1} starts on {', '.join(map(str, worlds))} ranks, {self.steps} steps in "
            f"{self.drill.seconds:.0f} s, {startup:.1f} s from a start to its first step"
        )
        return "\n".join(lines)

    def sentences(self):
        """Yield sentences on a drill without faults."""
        count = self.steps * RECIPE["global_batch_size"]
        yield f"ledger: each of {count:,} samples once, in {len(self.entries)} entries of {self.steps} steps"
        if self.drill.plan.worlds:
            yield f"losses in float64: within {self.differences['loss']:.1e} of the undisturbed run's ({TOLERANCE:g})"
        else:
            yield f"losses and gradient norms: bit-identical to the undisturbed run's in {len(self.entries)} entries"
            yield "final weights: bit-identical to the undisturbed run's"


def _row(kind, done):
    codes = ", ".join(map(str, sorted({one.code for one in done})))
    return f"{kind:<12} {len(done):>5} {sum(one.lost for one in done):>10}  {codes}"


def _identity(results, step):
    return json.loads(milestone(results, step).read_text(encoding="utf-8"))["identity"]
