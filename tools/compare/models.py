"""The models that are compared, RUN or RUN:STEP on the command line, with the manifests of their runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from stages.lib.errors import UserError
from stages.lib.manifest import Manifest
from stages.lib.report import curves
from stages.lib.report.results import ModelKey, Results


@dataclass(frozen=True, kw_only=True)
class ComparedModel:
    """A scored milestone: its manifests, evaluations by suite; `export` is None if it was deleted."""

    run: str
    step: int
    model: Manifest
    export: Manifest | None
    evaluations: dict[str, Manifest]

    tokens: int
    """Training tokens, with those of the model that the run was tuned from."""

    initial: str | None
    """The model that the run was tuned from, RUN:STEP; None if there is none, or its run is not compared."""

    @property
    def name(self) -> str:
        """The name in tables: RUN:STEP."""
        return f"{self.run}:{self.step}"


def find(directory: Path, texts: Sequence[str]) -> tuple[Results, list[ComparedModel]]:
    """Return the manifests of the runs below the results `directory`, and the models that `texts` name.

    Raises UserError if fewer than two are named, one is named twice, or a run or its scores do not exist.
    """
    if len(texts) < 2:
        raise UserError(f"two or more models must be given as RUN or RUN:STEP, the reference first, got {texts[0]}")
    named = [_split(directory, text) for text in texts]
    results = _read(directory, [run for run, _ in named])
    models = [_model(results, directory, run, step) for run, step in named]
    names = [model.name for model in models]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UserError(f"each model must be given once, got {twice[0]} {names.count(twice[0])} times")
    return results, models


def _split(directory: Path, text: str) -> tuple[str, int | None]:
    """Split RUN:STEP; a run's name may have a colon of its own."""
    known = sorted(path.name for path in directory.glob("runs/*") if path.is_dir())
    run, _, step = text.rpartition(":")
    if text in known:
        return text, None
    if run in known and step.isdecimal():
        return run, int(step)
    if run in known:
        raise UserError(f"{text} must have a number of steps after the colon, got {step!r}")
    asked = run if run and step.isdecimal() else text
    raise UserError(f"{directory / 'runs'} must have a run {asked}; it has {', '.join(known) or 'no run'}")


def _read(directory: Path, runs: Iterable[str]) -> Results:
    homes = [directory / "runs" / run for run in dict.fromkeys(runs)]
    found = [
        [path for home in homes for path in sorted(home.glob(pattern))]
        for pattern in ("models/*.json", "export/*/manifest.json", "eval/*/*.json")
    ]
    results = Results(*found)
    results.check_chain()
    return results


def _model(results: Results, directory: Path, run: str, step: int | None) -> ComparedModel:
    scored = sorted({at for name, at, _ in results.evaluations if name == run})
    if not scored or step not in (None, *scored):
        found = ", ".join(map(str, scored)) or "none"
        at = "" if step is None else f" of step {step}"
        raise UserError(f"{directory / 'runs' / run} must have scores{at}; it has scores of the steps: {found}")
    key: ModelKey = (run, scored[-1] if step is None else step)
    if key not in results.models:
        raise UserError(f"{directory / 'runs' / run}/models has no manifest of step {key[1]}, but its scores exist")
    evaluations = {suite: made for (*at, suite), made in results.evaluations.items() if tuple(at) == key}
    origin = results.tuned_from(run)
    model = results.models[key]
    return ComparedModel(
        run=run,
        step=key[1],
        model=model,
        export=results.exports.get(key),
        evaluations=evaluations,
        tokens=model.identity["tokens"] + curves.tokens_before(results)[run],
        initial="{}:{}".format(*origin) if origin else None,
    )
