"""Sweeps: the runs that a grid of values makes of a base run, each written as its differences from that run.

Their names are short, legal as file names, and the same for the same grid. Each mistake is one sentence.
"""

import difflib
import hashlib
import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from scripts.config.keys import KeysReader
from scripts.config.references import LENGTH, corpus_of, length_of, listed, training_of
from scripts.config.sections import Run
from scripts.config.values import identity_of
from scripts.config.written_out import FROM, Keys, known_run
from stages.lib.errors import UserError
from stages.lib.manifest import AVERAGE, MODELS, TRAINING
from stages.lib.recipe import below, groups_of, hints_of
from stages.lib.scoring.tasks import local_tasks


def check_sweeps(config: Keys) -> None:
    """Raise UserError for a sweep with equal runs, or whose best cannot be another run's initial model."""
    _check_equal_runs(config)
    for name, sweep in config.get("sweeps", {}).items():
        if "best" in sweep:
            _check_best(config, f"sweeps.{name}.best", sweep)
    for name, run in config["runs"].items():
        if "sweep" in run.get("initial", {}):
            _check_one_corpus(config, f"runs.{name}.initial.sweep", run)


def _check_best(config: Keys, where: str, sweep: Keys) -> None:
    """Raise UserError if no suite of the runs has the score; only lm-evaluation-harness knows those of its tasks."""
    suites = {suite for run in sweep["runs"] for suite in config["runs"][run]["suites"]}
    tasks = {task for suite in suites for task in config["suites"][suite]["tasks"]}
    if not tasks <= set(local_tasks.NAMES):
        return
    best = sweep["best"]
    given = best.get("task")
    # a task of validation text has one task per source: bits_per_byte_code
    named = {task for task in tasks if given is None or given == task or given.startswith(f"{task}_")}
    if not named:
        raise UserError(
            f"{where}.task must be a task of the runs' suites ({listed(sorted(tasks))}, or one of their sources, as "
            f"bits_per_byte_SOURCE), got {given!r}"
        )
    metrics = sorted({metric for task in named for metric in local_tasks.METRICS[task]})
    if best["metric"] not in metrics:
        raise UserError(
            f"{where}.metric must be a metric of {given or 'the suites'} ({listed(metrics)}), got {best['metric']!r}"
        )


def _check_one_corpus(config: Keys, where: str, run: Keys) -> None:
    """Raise UserError if runs of a sweep have other corpora (or tokenizers, if `run` has its own corpus)."""
    corpora = {other: corpus_of(config["runs"], other) for other in config["sweeps"][run["initial"]["sweep"]]["runs"]}
    own = "corpus" in run
    found = {other: config["corpora"][corpus]["tokenizer"] if own else corpus for other, corpus in corpora.items()}
    first, *others = found
    for other in others:
        if found[other] != found[first]:
            word = "tokenizer" if own else "corpus"
            raise UserError(
                f"{where} must be a sweep whose runs have the same {word}, got {found[first]} of {first} and "
                f"{found[other]} of {other}"
            )


def _check_equal_runs(config: Keys) -> None:
    """Raise UserError if two runs of a sweep of a valid config are equal: no key between them changes the result."""
    for name, sweep in config.get("sweeps", {}).items():
        seen: dict[str, str] = {}
        for run in sweep["runs"]:
            other = seen.setdefault(_identity(config["runs"][run]), run)
            if other != run:
                raise UserError(
                    f"sweeps.{name}.grid must make runs that differ, got equal runs {other} and {run}: no key between "
                    "them changes the model or its scores"
                )


def _identity(run: Keys) -> str:
    """Return, as text, all of a run that changes its model or its scores."""
    stage = training_of(run)
    recipes = {key: run.get(key, {}) for key in (stage, "convert")}
    recipes["model"] = {key: value for key, value in run.get("model", {}).items() if key != FROM}
    found = {key: identity_of(below(Run, key), recipe) for key, recipe in recipes.items()}
    length, shape = run[stage].get(length_of(run)), run.get("model", {}).get(FROM)
    rest = [run.get(key) for key in ("corpus", "initial", "suites")]
    return json.dumps([found, length, shape, rest], sort_keys=True)


MAX_NAME = 100
MAX_VALUE = 32  # characters of a value in a name


def name_of(sweep: str, values: dict[str, Any]) -> str:
    """Return the name of a run: the sweep's, and each axis with its value. `values`: {key: value}."""
    keys = labels(list(values))
    words = [f"{keys[key]}_{text_of(value)}" for key, value in values.items()]
    return shortened("-".join([sweep, *words]))


def labels(keys: list[str]) -> dict[str, str]:
    """Return {key: its shortest end that no other key has}."""
    return {key: _label(key.split("."), [other.split(".") for other in keys if other != key]) for key in keys}


def _label(parts: list[str], others: list[list[str]]) -> str:
    for length in range(1, len(parts)):
        if all(other[-length:] != parts[-length:] for other in others):
            return ".".join(parts[-length:])
    return ".".join(parts)


def text_of(value: Any) -> str:
    """Return a value as part of a name: letters, digits, dots, dashes and underscores."""
    plain = shown(value)
    text = re.sub(r"[^A-Za-z0-9_.-]+", "-", plain)
    if isinstance(value, (dict, list)) and len(text) <= MAX_VALUE:
        return text
    return text if text == plain and len(text) <= MAX_VALUE else f"{text[:20]}-{_digest(plain)}"


def shown(value: Any) -> str:
    """Return a value in short, for a name or a message."""
    if isinstance(value, bool) or value is None:
        return str(value).lower().replace("none", "null")
    if isinstance(value, (int, float)):
        return repr(int(value) if abs(value) < 1e15 and value == int(value) else value).replace("+", "")
    if isinstance(value, dict):
        return "-".join(f"{key}-{shown(item)}" for key, item in value.items())
    return "-".join(map(shown, value)) if isinstance(value, list) else str(value)


def shortened(name: str) -> str:
    """Return a name of at most MAX_NAME characters: of a longer one its start and a digest."""
    return name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 9]}-{_digest(name)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


MAX_RUNS = 1000
"""Runs of one sweep."""

SEED, SEEDS = "seed", "seeds"

Member = dict[str, Any]
"""The values of one run of a sweep: {axis as the user wrote it: value}"""


def members(name: str, sweep: Keys) -> dict[str, Member]:
    """Return {run: its values} of a sweep, the last axis fastest. Raises UserError."""
    where = f"sweeps.{name}.grid"
    number = math.prod(len(values) for values in sweep["grid"].values())
    if number > MAX_RUNS:
        raise UserError(f"{where} must make at most {MAX_RUNS:,} runs, got {number:,}")
    axes = {key: _values(f"{where}.{key}", key, values) for key, values in sweep["grid"].items()}
    _check_apart(where, axes)
    found: dict[str, Member] = {}
    for combination in itertools.product(*axes.values()):
        values = dict(zip(axes, combination, strict=True))
        run = name_of(name, values)
        if run in found:
            raise UserError(f"{where} must make runs of different names, got {run} twice")
        found[run] = values
    return found


def with_seeds(runs: Mapping[str, Any]) -> Keys:
    """Return the runs without `seeds`, and with a run per further seed, as its difference `from` the run. Raises
    UserError."""
    made: Keys = {}
    for name, run in runs.items():
        if not isinstance(run, dict) or run.get(SEEDS) is None:
            made[name] = run
            continue
        section = _trained_by(name, runs)
        if section == AVERAGE:
            raise UserError(f"runs.{name}.{SEEDS} must be omitted: averaged weights have the seed of their initial run")
        if SEED in (run.get(section) or {}):
            raise UserError(
                f"runs.{name}.{section}.{SEED} must not stand beside runs.{name}.{SEEDS}, which sets it too"
            )
        first, *others = run[SEEDS]
        made[name] = {key: value for key, value in run.items() if key != SEEDS}
        made[name][section] = {**(run.get(section) or {}), SEED: first}
        for seed in others:
            other = shortened(f"{name}-{SEED}_{seed}")
            if other in runs:
                raise UserError(f"runs.{name}.{SEEDS} makes the run {other}, which exists: rename one of them")
            made[other] = {FROM: name, section: {SEED: seed}}
    return made


def runs_of(name: str, sweep: Keys, runs: Mapping[str, Any]) -> dict[str, Keys]:
    """Return the runs of a sweep, each as its differences `from` the base. Raises UserError."""
    base = known_run(f"sweeps.{name}.base", sweep["base"], runs)
    trained_by = _trained_by(base, runs)
    if trained_by == AVERAGE and SEED in sweep["grid"]:
        raise UserError(f"sweeps.{name}.grid.{SEED} must be omitted: averaged weights have that of their initial run")
    made: dict[str, Keys] = {}
    for run, values in members(name, sweep).items():
        if run in runs:
            raise UserError(f"sweeps.{name} makes the run {run}, and runs has one of that name: rename one of them")
        made[run] = {FROM: base}
        for key, value in values.items():
            *groups, last = [trained_by, SEED] if key == SEED else key.split(".")
            inner: Keys = made[run]
            for group in groups:
                inner = inner.setdefault(group, {})
            inner[last] = value
    return made


def with_runs(config: Keys) -> Keys:
    """Return a valid config with more: `runs` of each sweep, {name: values}, and `initial.run` beside `initial.sweep`.

    That run, the first of the sweep, stands for all of them where the best is not known yet: corpus, template, cycles.
    """
    written = config.get("sweeps", {})
    sweeps = {name: sweep | {"runs": members(name, sweep)} for name, sweep in written.items()}
    runs = {}
    for name, run in config["runs"].items():
        runs[name] = _with_first_run(name, run, sweeps)
        before = config["runs"].get(runs[name].get("initial", {}).get("run"), {})
        if AVERAGE in run and "epochs" in before.get("finetune", {}):
            runs[name] = runs[name] | {LENGTH: "epochs"}  # what the milestones of its initial run count
    return config | {"runs": runs} | ({"sweeps": sweeps} if sweeps else {})


def _with_first_run(name: str, run: Keys, sweeps: Keys) -> Keys:
    initial = run.get("initial", {})
    if "sweep" not in initial:
        return run
    where, sweep = f"runs.{name}.initial", initial["sweep"]
    if len(initial) > 1:
        other = next(key for key in initial if key != "sweep")
        raise UserError(f"{where} must have sweep, or run and step, or path, got sweep and {other}")
    if "best" not in sweeps.get(sweep, {}):
        known = ", ".join(key for key in sweeps if "best" in sweeps[key]) or "none"
        raise UserError(f"{where}.sweep must be one of the config's sweeps with best ({known}), got {sweep!r}")
    return run | {"initial": initial | {"run": next(iter(sweeps[sweep]["runs"]))}}


def _values(where: str, key: str, values: list[Any]) -> list[Any]:
    """Return the values of an axis, with numbers as numbers. Raises UserError for an unknown key or equal values."""
    of_key, reader = _type_of_axis(where, key), KeysReader(is_partial=True)
    made = [reader.value(of_key, value, f"{where}[{number}]") for number, value in enumerate(values)]
    seen = set()
    for value in made:
        text = json.dumps(value, sort_keys=True)
        if text in seen:
            raise UserError(f"{where} must have each value once, got {shown(value)} twice: it makes equal runs")
        seen.add(text)
    return made


def _type_of_axis(where: str, key: str) -> Any:
    hint: Any = Run
    for part in ["pretrain", SEED] if key == SEED else key.split("."):
        hint = below(hint, part)
        if hint is None or key == FROM:
            known = [SEED, *_keys(Run)]
            near = difflib.get_close_matches(key, known, n=1)
            if not near:  # by the last part of a key
                lasts = {name.rpartition(".")[2]: name for name in reversed(known)}
                near = [lasts[last] for last in difflib.get_close_matches(key.rpartition(".")[2], lasts, n=1)]
            meant = f"; did you mean {near[0]}?" if near else ""
            raise UserError(f"{where} must be a key of a run, as pretrain.optimizer.learning_rate, or seed{meant}")
    return hint


def _keys(hint: Any, prefix: str = "") -> Iterator[str]:
    """Yield the dotted keys of a run."""
    for group in groups_of(hint):
        for key, of_key in hints_of(group).items():
            if prefix or key != FROM:
                yield f"{prefix}{key}"
                yield from _keys(of_key, f"{prefix}{key}.")


def _check_apart(where: str, axes: Mapping[str, Any]) -> None:
    """Raise UserError if an axis stands within another one."""
    for outer, inner in itertools.permutations(axes, 2):
        if inner.startswith(f"{outer}.") or (outer == SEED and inner in [f"{stage}.{SEED}" for stage in TRAINING]):
            raise UserError(f"{where}.{inner} must not stand beside {where}.{outer}, which sets it too")


def _trained_by(base: str, runs: Mapping[str, Any]) -> str:
    """Return the section that trains a run, which may stand in a run that it is from."""
    seen: set[str] = set()
    while base not in seen and isinstance(runs.get(base), dict):
        seen.add(base)
        for stage in MODELS:
            if runs[base].get(stage) is not None:
                return stage
        base = str(runs[base].get(FROM))
    return MODELS[0]
