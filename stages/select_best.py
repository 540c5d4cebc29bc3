"""Select the best run of a sweep by its scores, for another run to start from.

    python -m stages.select_best --models results/runs/lr-*/models/00000300.json \\
        --evaluations results/runs/lr-*/eval/00000300/*.json --recipe '{"metric": "bits_per_byte", "mode": "min"}' \\
        --output results/sweeps/lr/best.json

The score of a run is the mean over the tasks that have the metric. The manifest refers to the checkpoint of the best
model, and can be given wherever a milestone's manifest can: `--initial`, `--model`.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from stages.lib import files, manifest, stage
from stages.lib import recipe as recipes
from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.manifest_types import BestRunIdentity
from stages.lib.recipe import identity


@dataclass(frozen=True, kw_only=True)
class BestRecipe:
    """The score by which runs are compared."""

    metric: str = identity()
    """A metric of the suites of the sweep's runs, as `bits_per_byte`: the score of each run's last milestone. Of
    several tasks with this metric, their mean."""

    mode: str = identity(choices=("min", "max"))
    """The better score: the lower (`min`) or the higher one (`max`)."""

    task: str | None = identity(None)
    """The only task that counts. Default: all tasks with this metric."""


def scores_of(evaluations: Sequence[Path], recipe: BestRecipe) -> dict[str, float]:
    """Return {run: score}. Raises UserError if a run lacks a score that another one has."""
    found: defaultdict[str, dict[str, float]] = defaultdict(dict)
    known: set[str] = set()
    for path in evaluations:
        made = manifest.read(path, "evaluate")
        run_name, suite = path.absolute().parents[2].name, path.stem
        for task, metrics in made.identity["results"].items():
            known.update(f"{task} {metric}" for metric in metrics)
            value = metrics[recipe.metric]["value"] if recipe.metric in metrics else None
            if value is not None and recipe.task in (None, task):
                found[run_name][f"{suite}/{task}"] = value
    wanted = f"{recipe.metric} of {recipe.task}" if recipe.task else recipe.metric
    if not found:
        listed = ", ".join(sorted(known)) or "none"
        raise UserError(f"best must name a metric and task of the runs' scores ({listed}), got {wanted}")
    tasks = {task for values in found.values() for task in values}
    for run_name in sorted({path.absolute().parents[2].name for path in evaluations}):
        if missing := sorted(tasks - found.get(run_name, {}).keys()):
            raise UserError(f"best compares {wanted}, and run {run_name} has no such score of {missing[0]}")
    return {run_name: fmean(values.values()) for run_name, values in found.items()}


def best_of(scores: Mapping[str, float], mode: str) -> str:
    """Return the run with the best score; of equal ones the first by name."""
    sign = 1 if mode == "min" else -1
    return min(scores, key=lambda run_name: (sign * scores[run_name], run_name))


def run(arguments: argparse.Namespace, recipe: BestRecipe) -> None:
    """Write the manifest of the best run's model."""
    files.clear_leftovers(arguments.output)
    scores = scores_of(arguments.evaluations, recipe)
    name = best_of(scores, recipe.mode)
    models = {path.absolute().parents[1].name: path for path in arguments.models}
    if name not in models:
        raise UserError(f"--models must have the model of run {name}, which has the best score")
    made = manifest.read(models[name], *manifest.MODELS)
    logger.info("best of %s runs: %s, %s %.4f", len(scores), name, recipe.metric, scores[name])

    def path_of(name: str) -> str:
        return manifest.relative(made.directory / name, arguments.output.parent)

    known: BestRunIdentity = {
        "recipe": recipes.written(recipe, "identity"),
        "run": name,
        "step": made.identity["step"],
        "model": made.digest,
        "scores": scores,
        "checkpoint": path_of(made.identity["checkpoint"]),
        "outputs": {path_of(name): described for name, described in made.identity["outputs"].items()},
    }
    # no times and no host: if the same model stays the best, the bytes stay the same
    manifest.write(arguments.output, arguments.stage_name, known, {"code": arguments.code})


def main(argv: Sequence[str] | None = None) -> int:
    """Run the stage; return its exit code."""
    parser = stage.parser("stages.select_best", __doc__, BestRecipe)
    add = parser.add_argument
    add("--models", type=Path, nargs="+", required=True, metavar="MANIFEST", help="the model of each run")
    add("--evaluations", type=Path, nargs="+", required=True, metavar="MANIFEST", help="all scores of these models")
    add("--output", type=Path, required=True, metavar="MANIFEST", help="the manifest to write")
    return stage.execute(parser, run, argv)


if __name__ == "__main__":
    stage.leave(main())
