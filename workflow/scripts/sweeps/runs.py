"""Sweeps: the runs that a grid of values makes of a base run, each written as its differences from that run."""

import difflib
import itertools
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from scripts.config.derived_runs import FROM, Keys, known_run
from scripts.config.references import ConfigError
from scripts.config.runs import TRAINED_BY
from scripts.config.values import copied, schema_of_key
from scripts.sweeps.names import name_of, shown

MAX_RUNS = 1000
"""Runs of one sweep."""

SEED = "seed"
DEEPEST = 8  # groups within groups, of the keys that a message may suggest

Member = dict[str, Any]
"""The values of one run of a sweep: {axis as the user wrote it: value}"""


def members(name: str, sweep: Keys, schema: Keys) -> dict[str, Member]:
    """Return {run: its values} of a sweep, the last axis fastest. `schema`: that of a run. Raises ConfigError."""
    where = f"sweeps.{name}.grid"
    number = math.prod(len(values) for values in sweep["grid"].values())
    if number > MAX_RUNS:
        raise ConfigError(f"{where} must make at most {MAX_RUNS:,} runs, got {number:,}")
    axes = {key: _values(f"{where}.{key}", key, values, schema) for key, values in sweep["grid"].items()}
    _check_apart(where, axes)
    found: dict[str, Member] = {}
    for combination in itertools.product(*axes.values()):
        values = dict(zip(axes, combination, strict=True))
        run = name_of(name, values)
        if run in found:
            raise ConfigError(f"{where} must make runs of different names, got {run} twice")
        found[run] = values
    return found


def runs_of(name: str, sweep: Keys, runs: Mapping[str, Any], schema: Keys) -> dict[str, Keys]:
    """Return the runs of a sweep, each as its differences `from` the base. Raises ConfigError."""
    base = known_run(f"sweeps.{name}.base", sweep["base"], runs)
    trained_by = _trained_by(base, runs)
    made = {}
    for run, values in members(name, sweep, schema).items():
        if run in runs:
            raise ConfigError(f"sweeps.{name} makes the run {run}, and runs has one of that name: rename one of them")
        made[run] = {FROM: base}
        for key, value in values.items():
            _set(made[run], f"{trained_by}.{SEED}" if key == SEED else key, value)
    return made


def with_runs(config: Keys, schema: Keys) -> Keys:
    """Return a valid config with more: `runs` of each sweep, {name: values}, and `initial.run` beside `initial.sweep`.

    That run, the first of the sweep, stands for all of them where the best is not known yet: corpus, template, cycles.
    """
    of_run = schema["properties"]["runs"]["additionalProperties"]
    written = config.get("sweeps", {})
    sweeps = {name: sweep | {"runs": members(name, sweep, of_run)} for name, sweep in written.items()}
    runs = {name: _with_first_run(name, run, sweeps) for name, run in config["runs"].items()}
    return config | {"runs": runs} | ({"sweeps": sweeps} if sweeps else {})


def _with_first_run(name: str, run: Keys, sweeps: Keys) -> Keys:
    initial = run.get("initial", {})
    if "sweep" not in initial:
        return run
    where, sweep = f"runs.{name}.initial", initial["sweep"]
    if len(initial) > 1:
        other = next(key for key in initial if key != "sweep")
        raise ConfigError(f"{where} must have sweep, or run and step, or path, got sweep and {other}")
    if "best" not in sweeps.get(sweep, {}):
        known = ", ".join(key for key in sweeps if "best" in sweeps[key]) or "none"
        raise ConfigError(f"{where}.sweep must be one of the config's sweeps with best ({known}), got {sweep!r}")
    return run | {"initial": initial | {"run": next(iter(sweeps[sweep]["runs"]))}}


def _values(where: str, key: str, values: list[Any], schema: Keys) -> list[Any]:
    """Return the values of an axis, with numbers as numbers. Raises ConfigError for an unknown key or equal values."""
    of_key = _schema_of_axis(where, key, schema)
    made = [copied(value, of_key, f"{where}[{number}]") for number, value in enumerate(values)]
    seen = set()
    for value in made:
        text = json.dumps(value, sort_keys=True)
        if text in seen:
            raise ConfigError(f"{where} must have each value once, got {shown(value)} twice: it makes equal runs")
        seen.add(text)
    return made


def _schema_of_axis(where: str, key: str, schema: Keys) -> Keys:
    at = schema
    for part in ["pretrain", SEED] if key == SEED else key.split("."):
        at = schema_of_key(at, part)
        if not at or key == FROM:
            known = [SEED, *_keys(schema)]
            near = difflib.get_close_matches(key, known, n=1) or _of_last_part(key, known)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(f"{where} must be a key of a run, as pretrain.optimizer.learning_rate, or seed{hint}")
    return at


def _of_last_part(key: str, known: list[str]) -> list[str]:
    """Return the known keys whose last part is nearest to that of a key."""
    lasts = {name.rpartition(".")[2]: name for name in reversed(known)}
    return [lasts[last] for last in difflib.get_close_matches(key.rpartition(".")[2], lasts, n=1)]


def _keys(schema: Keys, prefix: str = "", depth: int = DEEPEST) -> Iterator[str]:
    """Yield the dotted keys of a run."""
    for part in (schema, *schema.get("anyOf", ())):
        for key, below in part.get("properties", {}).items() if depth else ():
            if prefix or key != FROM:
                yield f"{prefix}{key}"
                yield from _keys(below, f"{prefix}{key}.", depth - 1)


def _check_apart(where: str, axes: Mapping[str, Any]) -> None:
    """Raise ConfigError if an axis stands within another one."""
    for outer, inner in itertools.permutations(axes, 2):
        if inner.startswith(f"{outer}.") or (outer == SEED and inner in [f"{stage}.{SEED}" for stage in TRAINED_BY]):
            raise ConfigError(f"{where}.{inner} must not stand beside {where}.{outer}, which sets it too")


def _trained_by(base: str, runs: Mapping[str, Any]) -> str:
    """Return the section that trains a run, which may stand in a run that it is from."""
    seen: set[str] = set()
    while base not in seen and isinstance(runs.get(base), dict):
        seen.add(base)
        for stage in TRAINED_BY:
            if runs[base].get(stage) is not None:
                return stage
        base = str(runs[base].get(FROM))
    return TRAINED_BY[0]


def _set(run: Keys, key: str, value: Any) -> None:
    *groups, last = key.split(".")
    for group in groups:
        run = run.setdefault(group, {})
    run[last] = value
