"""Checks of the sweeps of a config that is valid otherwise. Each mistake is one sentence."""

import json
from typing import Any

from scripts.config.derived_runs import FROM
from scripts.config.references import LOCAL_METRICS, LOCAL_TASKS, ConfigError, listed
from scripts.config.runs import corpus_of, length_of, training_of
from scripts.identity import identity_of

Keys = dict[str, Any]


def check_sweeps(config: Keys, schema: Keys) -> None:
    """Raise ConfigError for a sweep with equal runs, or whose best cannot be another run's initial model."""
    _check_equal_runs(config, schema)
    for name, sweep in config.get("sweeps", {}).items():
        if "best" in sweep:
            _check_best(config, f"sweeps.{name}.best", sweep)
    for name, run in config["runs"].items():
        if "sweep" in run.get("initial", {}):
            _check_one_corpus(config, f"runs.{name}.initial.sweep", run)


def _check_best(config: Keys, where: str, sweep: Keys) -> None:
    """Raise ConfigError if no suite of the runs has the score; only lm-evaluation-harness knows those of its tasks."""
    suites = {suite for run in sweep["runs"] for suite in config["runs"][run]["suites"]}
    tasks = {task for suite in suites for task in config["suites"][suite]["tasks"]}
    if not tasks <= set(LOCAL_TASKS):
        return
    best = sweep["best"]
    given = best.get("task")
    # a task of validation text has one task per source: bits_per_byte_code
    named = {task for task in tasks if given is None or given == task or given.startswith(f"{task}_")}
    if not named:
        raise ConfigError(
            f"{where}.task must be a task of the runs' suites ({listed(sorted(tasks))}, or one of their sources, as "
            f"bits_per_byte_SOURCE), got {given!r}"
        )
    metrics = sorted({metric for task in named for metric in LOCAL_METRICS[task]})
    if best["metric"] not in metrics:
        raise ConfigError(
            f"{where}.metric must be a metric of {given or 'the suites'} ({listed(metrics)}), got {best['metric']!r}"
        )


def _check_one_corpus(config: Keys, where: str, run: Keys) -> None:
    """Raise ConfigError if runs of a sweep have other corpora (or tokenizers, if `run` has its own corpus)."""
    corpora = {other: corpus_of(config["runs"], other) for other in config["sweeps"][run["initial"]["sweep"]]["runs"]}
    own = "corpus" in run
    found = {other: config["corpora"][corpus]["tokenizer"] if own else corpus for other, corpus in corpora.items()}
    first, *others = found
    for other in others:
        if found[other] != found[first]:
            word = "tokenizer" if own else "corpus"
            raise ConfigError(
                f"{where} must be a sweep whose runs have the same {word}, got {found[first]} of {first} and "
                f"{found[other]} of {other}"
            )


def _check_equal_runs(config: Keys, schema: Keys) -> None:
    """Raise ConfigError if two runs of a sweep of a valid config are equal: no key between them changes the result."""
    of_run = schema["properties"]["runs"]["additionalProperties"]
    for name, sweep in config.get("sweeps", {}).items():
        seen: dict[str, str] = {}
        for run in sweep["runs"]:
            other = seen.setdefault(_identity(config["runs"][run], of_run), run)
            if other != run:
                raise ConfigError(
                    f"sweeps.{name}.grid must make runs that differ, got equal runs {other} and {run}: no key between "
                    "them changes the model or its scores"
                )


def _identity(run: Keys, schema: Keys) -> str:
    """Return, as text, all of a run that changes its model or its scores."""
    stage = training_of(run)
    recipes = {key: {k: v for k, v in run.get(key, {}).items() if k != "milestones"} for key in (stage, "convert")}
    recipes["model"] = {key: value for key, value in run.get("model", {}).items() if key != FROM}
    found = {key: identity_of(schema["properties"][key], recipe) for key, recipe in recipes.items()}
    length, shape = run[stage][length_of(run)], run.get("model", {}).get(FROM)
    rest = [run.get(key) for key in ("corpus", "initial", "suites")]
    return json.dumps([found, length, shape, rest], sort_keys=True)
