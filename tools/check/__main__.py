"""Check a config without starting a stage: every mistake that can be known, and what would be made.

    python -m tools.check my.yaml
    python -m tools.check my.yaml wide.yaml runs.base.pretrain.steps=100 --profile local

Files and values are those of `snakemake --configfile` and `--config set=KEY=VALUE`. It prints the runs, the sources
with their files, and the number of jobs of each rule. The first mistake ends it with one sentence and exit code 2. It
takes about 3 s of CPU: the workflow plans in a process of its own, in a dry run. --profile also checks the number of
ranks.

Without arguments it does the part of that which needs the stages' recipes. The workflow runs it so before it plans, dry
runs included. It reads from stdin

    {"recipes": {"runs.base.pretrain": {"stage": "pretrain", "keys": {...}, ...}}, "sources": ["sources.mine", ...],
     "manifests": {"results/runs/base/models/00000120.json": {"recipe": "runs.base.pretrain", "inputs": {...}}},
     "lists": ["sources.mine", ...], "initial": {"base": {"path": "models/llama", "stage": "pretrain"}}, "cache": "DIR"}

and prints {"stale": {manifest: reason}, "warnings": [sentence], "initial": {run: digest}}. It imports no torch, unless
a suite names a task of lm-evaluation-harness for the first time, or the profile names a GPU and a training that is
new to it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stages.lib import files, manifest, stage
from stages.lib import recipe as recipes
from stages.lib.checkpoints import model_files
from stages.lib.checkpoints.commit import read_marker
from stages.lib.errors import UserError
from stages.lib.model.architectures import ARCHITECTURES
from stages.lib.run_directory.events import Lineage, read_events
from stages.lib.sources import source
from stages.lib.space import amount
from stages.lib.training.optimizers import schedule
from stages.lib.training.settings import requirements
from stages.lib.training.settings.recipe import VALIDATION_SHARE
from stages.registry import STAGES
from tools.check import dry_run, facts, known_tasks
from tools.check.stale import Outside, Stale
from tools.plan import fit, request, subject

HIGH_RATE = 0.1
"""Learning rate above which one is more likely a mistake; Muon's own may be higher."""

GPU_BYTES = 200 << 30
"""Memory of a GPU, at most."""


def load_recipes(plan: dict[str, Any]) -> dict[str, Any]:
    """Return {where: recipe}. Raises UserError for the first recipe that is not valid."""
    loaded: dict[str, Any] = {}
    for where, part in plan["recipes"].items():
        kind: Any = STAGES[part["stage"]].recipe_type
        keys = dict(part["keys"])
        if "model" in part:
            keys["model"] = model_keys(part["model"], where)
        recipe: Any = recipes.load(kind, keys, where)
        if "ranks" in part:
            recipe.check_ranks(part["ranks"], where)
        loaded[where] = recipe
    return loaded


def model_keys(model: dict[str, Any], where: str) -> dict[str, Any]:
    """Return the identity keys of the model of a run's recipe `where`. Raises UserError if it is not valid."""
    from stages.lib.huggingface import config_json

    keys = {key: value for key, value in model.items() if key != "from"}
    if "from" in model:
        return config_json.model_identity(model["from"], keys)
    run = where.rpartition(".")[0]
    return recipes.written(recipes.load(ARCHITECTURES, keys, f"{run}.model"), "identity")


def model_at(model: dict[str, str]) -> Any:
    """Return the configuration of the model at a path; None if it has no config.json. Raises UserError for another
    architecture."""
    from stages.lib.huggingface import config_json

    file = Path(model["config"]) if "config" in model else Path(model["path"], config_json.CONFIG)
    return config_json.read_config(files.read_json(file), file)[0] if file.is_file() else None


def check_positions(plan: dict[str, Any], loaded: dict[str, Any]) -> None:
    """Raise UserError if a tuned run has longer samples than its initial model has positions."""
    for where, part in plan["recipes"].items():
        if "origin" not in part or where not in loaded:
            continue
        pretrained = loaded.get(f"runs.{part['origin']}.pretrain")
        at_path = plan["initial"].get(part["origin"])
        model = pretrained.model if pretrained is not None else at_path and model_at(at_path)
        if model is None:
            continue
        positions, seq_len = model.max_position_embeddings, loaded[where].seq_len
        if seq_len > positions:
            raise UserError(
                f"{where}.seq_len must be at most max_position_embeddings of the model that it tunes ({positions}), "
                f"got {seq_len}"
            )


def check_memory(plan: dict[str, Any]) -> None:
    """Raise UserError if a training cannot fit the GPU that the profile names. It imports torch, unless it is known."""
    for where, part in plan["recipes"].items():
        if "planned" not in part:
            continue
        run_name = where.removeprefix("runs.").rpartition(".")[0]
        asked = request.read(run_name, part["planned"])
        if not isinstance(asked, str):
            fit.check(asked, Path(plan["cache"]))


def initial_digest(run_name: str, model: dict[str, str], cache: Path) -> str:
    """Return the digest of the model at a path from which a run starts. Raises UserError if it cannot be one."""
    where, config = f"runs.{run_name}.initial", model.get("config")
    if model["stage"] == "finetune" and config is None and model_files.find_fms(Path(model["path"])) is not None:
        raise UserError(
            f"{where}.config is missing: {model['path']} is a {model_files.KIND}, which does not hold its config.json"
        )
    if config is not None and not Path(config).is_file():
        raise UserError(f"{where}.config must be a config.json, and {config} is not a file")
    return model_files.digest_of(model["path"], f"{where}.path", cache, Path(config) if config else None)


def check_state(recipe: Any, run_name: str, path: str) -> None:
    """Raise UserError if a run continues the optimizer, schedule or data of a model that holds weights alone."""
    initial = getattr(recipe, "initial", None)
    place = Path(path)
    kind = "Hugging Face model" if (place / "config.json").is_file() else None
    if place.exists() and model_files.find_fms(place) is not None:
        kind = model_files.KIND
    if initial is None or kind is None:
        return
    for key, value in dataclasses.asdict(initial).items():
        if value != "reset":
            raise UserError(
                f"runs.{run_name}.pretrain.initial.{key} must be reset, since runs.{run_name}.initial.path {path} is a "
                f"{kind}, which holds weights alone; got {value}"
            )


def check_machine(plan: dict[str, Any], loaded: dict[str, Any]) -> None:
    """Raise UserError if a model's weights, gradients and AdamW moments are larger than the memory of this machine."""
    from stages.lib.distributed import gpus
    from stages.lib.model import flops

    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for where in plan["recipes"]:
        model = getattr(loaded.get(where), "model", None)
        if model is None or not where.startswith("runs."):
            continue
        count = flops.parameter_count(model, 0)
        if 16 * count > memory and 16 * count > memory + gpus.count() * GPU_BYTES:
            run = where.rpartition(".")[0]
            raise UserError(
                f"{run}.model has {count / 1e9:,.1f} billion parameters without its embeddings, and their weights, "
                f"gradients and optimizer state need {amount(16 * count)}: this machine has {amount(memory)}; "
                "make the model smaller, or give the --profile of the cluster that trains it"
            )


def sources_with_validation(plan: dict[str, Any], loaded: dict[str, Any]) -> set[str]:
    """Return the keys of the sources that need a validation split: those of corpora and of fine-tuning."""
    names = {name for part in plan["manifests"].values() for name in part.get("sources", ())}
    for where, part in plan["recipes"].items():
        if part["stage"] == "finetune" and where in loaded:
            names.update(loaded[where].weights)
    return {f"sources.{name}" for name in names}


def slow_trainings(plan: dict[str, Any], loaded: dict[str, Any]) -> list[str]:
    """Return sentences on trainings that this machine would do on its CPU in a slow dtype."""
    from stages.lib.distributed import gpus

    found = [
        requirements.slow_on_cpu(loaded[where], where)
        for where, part in plan["recipes"].items()
        if where in loaded and "milestones" in part and "planned" not in part  # with a `device` in the profile
    ]
    return [sentence for sentence in found if sentence is not None] if any(found) and not gpus.count() else []


def newest_checkpoint(milestone: str, recipe: Any, plan: dict[str, Any], stale: Stale) -> tuple[int, int] | None:
    """Return (step, steps of the run when it was trained) of the checkpoint from which a milestone would be trained.

    None if its run has none up to there. `milestone`: path of its manifest.
    """
    expected, corpus = recipes.written(recipe, "identity"), plan["manifests"].get(milestone, {}).get("inputs", {})
    markers = Path(milestone).parent.parent.glob(f"train/*/checkpoints/[0-9]*/{manifest.COMMIT}")
    up_to = [marker for marker in markers if marker.parent.name <= Path(milestone).stem]
    for marker in sorted(up_to, key=lambda marker: marker.parent.name, reverse=True):
        try:
            commit = read_marker(marker.parent)
        except UserError:  # the training skips it, and names it
            continue
        found = {key: value for key, value in commit["recipe"].items() if key in expected or key != "model"}
        made_from = stale.read.get(corpus.get("corpus", ""))
        if found == expected and (made_from is None or commit["corpus"] == made_from.digest):
            lineage = Lineage(read_events(marker.parents[2]))
            steps = lineage.steps(manifest.describe(marker)["sha256"])
            return None if steps is None else (commit["step"], steps)
    return None


def warnings_of(plan: dict[str, Any], loaded: dict[str, Any], stale: Stale) -> list[str]:
    """Return sentences on learning-rate schedules that are valid and rarely meant."""
    found = []
    for where, part in plan["recipes"].items():
        optimizer = getattr(loaded.get(where), "optimizer", None)
        if optimizer is not None and optimizer.learning_rate > HIGH_RATE:
            found.append(
                f"{where}.optimizer.learning_rate is {optimizer.learning_rate:g}, and usual rates are 1e-5 to 0.02: "
                "above 0.1 the loss diverges"
            )
        if where not in loaded or "milestones" not in part:
            continue
        recipe = loaded[where]
        if recipe.steps is None:  # epochs: the data tell how many steps they are
            continue
        milestones = [int(Path(path).stem) for path in part["milestones"]]
        share = subject.validation(recipe, dataclasses.asdict(recipe), milestones)["validation_share"]
        if recipe.validation.tokens is not None and share > VALIDATION_SHARE:
            found.append(
                f"{where}.validation may take {share:.0%} of the time of the steps: lower its tokens, or raise every"
            )
        found += schedule.remarks(recipe.schedule, recipe.steps, f"{where}.schedule")
        initial = getattr(recipe, "initial", None)  # a schedule that continues is checked where its start is known
        missing = [path for path in part["milestones"] if path not in stale.read]
        if not missing or missing[-1] != part["milestones"][-1] or (initial and initial.schedule == "continue"):
            continue
        last = newest_checkpoint(missing[0], recipe, plan, stale) or stale.last_milestone(part["milestones"])
        if last is None:
            continue
        step, steps_then = last
        peak, steps = recipe.optimizer.learning_rate, (steps_then, recipe.steps)
        found += filter(None, [schedule.jump(recipe.schedule, peak, step, steps, where)])
    return found


def run(arguments: argparse.Namespace) -> None:
    """Check config files and values, or without any the plan on stdin."""
    if arguments.config or sys.stdin.isatty():
        check_config(arguments)
    else:
        check_plan()


def check_config(arguments: argparse.Namespace) -> None:
    """Print what is known of a config. Raises UserError for the first mistake."""
    started = time.monotonic()
    command = dry_run.command_of(arguments.config, arguments.target, arguments.profile)
    found = plan_in_process(command, dry_run.is_local(arguments.profile))
    seconds = time.monotonic() - started
    result = "no mistake found, but read the notes below," if found.warnings else "no mistake found"
    print(f"{' '.join(arguments.config) or 'the default config'}: {result} in {seconds:.1f} s")
    for line in [*found.facts.get("runs", ()), *found.facts.get("sources", ())]:
        print(f"  {line}")
    for warning in found.warnings:
        print(f"  note: {warning}")
    jobs = [f"{count} {rule}" for rule, count in found.jobs.items() if rule != arguments.target]
    print(f"  {arguments.target} would start {', '.join(jobs)}" if jobs else f"  {arguments.target} is made already")


def plan_in_process(command: Sequence[str], is_local: bool) -> dry_run.DryRun:
    """Run a dry run; its check of the recipes writes what it learnt to a file. Raises UserError for a mistake.

    `is_local`: trainings would run on this machine.
    """
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, "facts.json")
        environment = {**os.environ, dry_run.FACTS: str(place), "PYTHONSAFEPATH": "1"}
        if is_local:
            environment[dry_run.LOCAL] = "1"
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        learnt = files.read_json_object(place) if place.exists() else {}
    return dry_run.result_of(done.returncode, done.stdout, done.stderr, learnt)


def check_plan() -> None:
    """Check the recipes of the plan on stdin, and print what is stale."""
    try:
        plan = json.load(sys.stdin)
    except ValueError:
        raise UserError("stdin must hold a plan of the workflow as JSON; name a config file to check it") from None
    loaded = load_recipes(plan)
    check_positions(plan, loaded)
    check_memory(plan)
    for run_name, model in plan["initial"].items():
        check_state(loaded.get(f"runs.{run_name}.{model['stage']}"), run_name, model["path"])
    if os.environ.get(dry_run.LOCAL):
        check_machine(plan, loaded)
    cache = Path(plan["cache"])
    suites = {where: recipe for where, recipe in loaded.items() if plan["recipes"][where]["stage"] == "evaluate"}
    known_tasks.check({where: (recipe.tasks, recipe.include_path) for where, recipe in suites.items()}, cache)
    initial = {name: initial_digest(name, model, cache) for name, model in plan["initial"].items()}
    stale = Stale(plan["manifests"], {where: recipes.written(recipe, "identity") for where, recipe in loaded.items()})
    reasons = stale.reasons(initial)
    outside = Outside(loaded, stale.read, plan["manifests"], cache)
    reasons = outside.reasons(plan["initial"]) | reasons
    checked = set(plan["sources"])
    if os.environ.get(dry_run.FACTS):  # those that the target does not need as well
        listed_already = {plan["manifests"][path].get("recipe") for path in stale.read}
        checked = {where for where, part in plan["recipes"].items() if part["stage"] == "list"} - listed_already
    new = {where: loaded[where] for where in plan["recipes"] if where in checked and where in loaded}
    for where, recipe in new.items():
        source.check_paths(where, recipe)
    listed = {where for where in plan.get("lists", ()) if where in loaded}
    listed -= {plan["manifests"][path].get("recipe") for path in reasons}
    warnings = [*warnings_of(plan, loaded, stale), *outside.sentences(listed)]
    if os.environ.get(dry_run.LOCAL):
        warnings += slow_trainings(plan, loaded)
    warnings += facts.check_sample(new, sources_with_validation(plan, loaded))
    result = {"stale": reasons, "warnings": warnings, "initial": initial}
    if os.environ.get(dry_run.FACTS):
        files.write_json(os.environ[dry_run.FACTS], facts.facts_of(plan["recipes"], loaded))
    print(json.dumps(result))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    parser = stage.parser("tools.check", __doc__)
    parser.add_argument(
        "config", nargs="*", metavar="FILE|KEY=VALUE", help="config files, and values that replace theirs"
    )
    parser.add_argument("--target", default="all", help="what would be made (default: all)")
    parser.add_argument("--profile", metavar="DIR", help="a profile, or the name of one in profiles/")
    return stage.execute(parser, run, argv)


if __name__ == "__main__":
    stage.leave(main())
