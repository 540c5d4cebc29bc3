"""The manifests of all models, exports and evaluations; the checks that they belong together, and to the config."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from stages.lib import manifest
from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.manifest import Manifest
from stages.lib.scoring.inputs import kept_manifest

MILESTONE = re.compile(r"(?P<unit>epoch)?(?P<number>\d+)\.json")
"""File name of the manifest of a milestone."""

Key = TypeVar("Key", bound=tuple)
ModelKey = tuple[str, int]
"""(run, step)"""

EvaluationKey = tuple[str, int, str]
"""(run, step, suite)"""

BaselineKey = tuple[str, str, str]
"""(baseline, corpus, suite)"""


class Results:
    """The manifests that exist: `models` and `exports` by (run, step), `evaluations` by (run, step, suite).

    `baselines` by (name, corpus, suite), `contamination` by (corpus, suite).
    """

    def __init__(
        self,
        models: Iterable[Path],
        exports: Iterable[Path],
        evaluations: Iterable[Path],
        baselines: Iterable[Path] = (),
        contamination: Iterable[Path] = (),
    ) -> None:
        self.absent: list[str] = []
        self.models: dict[ModelKey, Manifest] = self._read(models, _model_key, *manifest.TRAINING)
        self.exports: dict[ModelKey, Manifest] = self._read(exports, _export_key, "convert")
        self.evaluations: dict[EvaluationKey, Manifest] = self._read(evaluations, _evaluation_key, "evaluate")
        self.baselines: dict[BaselineKey, Manifest] = self._read(baselines, _baseline_key, "evaluate")
        self.contamination = self._read(contamination, _contamination_key, "find_contamination")

    def _read(self, paths: Iterable[Path], key_of: Callable[[Manifest], Key], *stages: str) -> dict[Key, Manifest]:
        found = {}
        for path in paths:
            if path.exists():
                made = manifest.read(path, *stages)
                found[key_of(made)] = made
            else:
                self.absent.append(str(path))
        return dict(sorted(found.items()))

    def all(self) -> list[Manifest]:
        """Return all manifests: models, exports, evaluations, baselines' scores, contamination."""
        kinds = (self.models, self.exports, self.evaluations, self.baselines, self.contamination)
        return [made for found in kinds for made in found.values()]

    def contamination_of(self, evaluation: Manifest) -> Manifest | None:
        """Return the contamination of an evaluation's corpus by its suite; None if it is not known."""
        return self._by_corpus.get((evaluation.identity.get("corpus"), evaluation.path.stem))

    @functools.cached_property
    def _by_corpus(self) -> dict[tuple[str | None, str], Manifest]:
        return {(made.identity["corpus"], made.identity["suite"]): made for made in self.contamination.values()}

    def runs(self) -> list[str]:
        """Return the names of the runs, sorted."""
        return sorted({key[0] for found in (self.models, self.exports, self.evaluations) for key in found})

    def tuned_from(self, run_name: str) -> ModelKey | None:
        """Return (run, step) of the model that a run was fine-tuned from; None if it is not among these models."""
        tuned = [made for (name, _), made in self.models.items() if name == run_name and made.stage == "finetune"]
        return self._by_checkpoint.get(tuned[-1].identity["initial"]) if tuned else None

    @functools.cached_property
    def _by_checkpoint(self) -> dict[str, ModelKey]:
        """The first model of each checkpoint digest, as (run, step): hashed only once for all tuned runs."""
        found: dict[str, ModelKey] = {}
        for key, made in self.models.items():
            found.setdefault(manifest.checkpoint_digest(made), key)
        return found

    def at(self, place: str) -> Manifest | None:
        """Return the manifest of a run by its path below runs/; None if it is not among these."""
        return self._by_place.get(place)

    @functools.cached_property
    def _by_place(self) -> dict[str, Manifest]:
        of_runs = [made for found in (self.models, self.exports, self.evaluations) for made in found.values()]
        return {"/".join(made.path.absolute().parts[-parts:]): made for made in of_runs for parts in (3, 4)}

    def missing(self, expected: Mapping[str, Any]) -> list[str]:
        """Return the missing results: given paths that do not exist, and milestones in `expected` without a path."""
        missing = list(self.absent)
        given = " ".join(missing)
        for run_name, run in expected.get("runs", {}).items():
            for step in run["milestones"]:
                places = [f"{run_name}/models/{step}.json", f"{run_name}/export/{step}/manifest.json"]
                places += [f"{run_name}/eval/{step}/{suite}.json" for suite in run["suites"]]
                missing += [place for place in places if self.at(place) is None and place not in given]
        return missing

    def check_chain(self) -> None:
        """Raise UserError if an export is not of the model beside it, or an evaluation not of the export."""
        for key, export in self.exports.items():
            if key in self.models and export.identity["model"] != self.models[key].digest:
                raise stale(export.path, f"was made from another model than {self.models[key].path}")
        for (run_name, step, _), evaluation in self.evaluations.items():
            matching = self.exports.get((run_name, step))
            if matching is not None and evaluation.identity["export"] != matching.digest:
                raise stale(evaluation.path, f"was made from another export than {matching.path}")
            _check_kept(evaluation)
        for scores in self.baselines.values():
            _check_kept(scores)


def _check_kept(evaluation: Manifest) -> None:
    """Raise UserError if an evaluation is not the one that stages.evaluate kept beside its tasks."""
    path = kept_manifest(evaluation.path)
    if path.exists() and manifest.read(path, "evaluate").digest != evaluation.digest:
        raise stale(evaluation.path, f"has other scores than {path}")


def _model_key(made: Manifest) -> ModelKey:
    return made.path.absolute().parents[1].name, made.identity["step"]


def _export_key(made: Manifest) -> ModelKey:
    return made.path.absolute().parents[2].name, made.identity["step"]


def _evaluation_key(made: Manifest) -> EvaluationKey:
    return made.path.absolute().parents[2].name, made.identity["step"], made.path.stem


def _baseline_key(made: Manifest) -> BaselineKey:
    return made.path.absolute().parents[1].name, made.path.parent.name, made.path.stem


def _contamination_key(made: Manifest) -> tuple[str, str]:
    return made.path.absolute().parent.name, made.path.stem


def name_of_model(place: str | None) -> str | None:
    """Return the name of a model by its place, which tells of no site; None if it is not known.

    RUN/models/00000300.json is step 300 of a run, epoch002.json the second epoch, and sweeps/lr/best.json the best run
    of the sweep lr; other models have the name of their file or directory.
    """
    path = Path(place or "")
    milestone = MILESTONE.fullmatch(path.name)
    if path.parent.name == "models" and milestone:
        return f"{path.parents[1].name}, {milestone['unit'] or 'step'} {int(milestone['number']):,}"
    if path.name == "best.json" and path.parents[1].name == "sweeps":
        return f"best run of the sweep {path.parent.name}"
    return path.name or None


def stale(path: Path, why: str) -> UserError:
    """Return the error for a result that must be made again."""
    return UserError(f"{path} {why}; delete {path} and run the workflow again")


def check_recipes(results: Results, expected: Mapping[str, Any]) -> None:
    """Raise UserError for the first manifest that was made with another recipe than the config has now.

    `expected`: {"runs"} with the identity of each recipe, as its manifest has it.
    """
    runs = expected["runs"]
    suites = {name: recipe for run in runs.values() for name, recipe in run["suites"].items()}
    for (run_name, _), made in results.models.items():
        if run_name in runs:
            _check_model(made, runs[run_name], results)
    for (run_name, _), made in results.exports.items():
        if run_name in runs:
            _compare(made, runs[run_name]["convert"])
    for (_, _, suite), made in [*results.evaluations.items(), *results.baselines.items()]:
        if suite in suites:  # of this run, or of a run that was tuned from it
            _compare(made, suites[suite])


def _check_model(made: Manifest, run: Mapping[str, Any], results: Results) -> None:
    stage_name, found = made.stage, made.identity["recipe"]
    if stage_name not in run:
        raise stale(made.path, f"was made by stages.{stage_name}, and the config names another stage")
    if stage_name == "finetune":  # its model is that of the run that it was tuned from
        found = {name: value for name, value in found.items() if name != "model"}
    _compare(made, _with_model(run[stage_name], run.get("model_config")), found)
    initial = run.get("initial", {})
    if "digest" in initial and made.identity.get("initial") != initial["digest"]:
        raise stale(made.path, f"was trained from another model than {initial['path']} holds now")
    origin = results.at(initial.get("model", ""))
    if origin is not None and made.identity.get("initial") != manifest.checkpoint_digest(origin):
        raise stale(made.path, f"was trained from another model than {origin.path}")


def _with_model(expected: Mapping[str, Any], model_config: str | None) -> Mapping[str, Any]:
    """Return a run's recipe with the shape of the config.json that `model.from` names, if it names one."""
    if model_config is None:
        return expected
    from stages.lib.huggingface import config_json

    return {**expected, "model": config_json.model_identity(model_config, expected.get("model", {}))}


def _compare(made: Manifest, expected: Mapping[str, Any], found: Mapping[str, Any] | None = None) -> None:
    why = difference(made.identity["recipe"] if found is None else found, expected)
    if why is not None:
        raise stale(made.path, why)


def difference(found: Mapping[str, Any], expected: Mapping[str, Any], where: str = "") -> str | None:
    """Return in words the first difference of a manifest's recipe to the config's; None if they are equal."""
    for name in sorted(set(found) | set(expected)):
        a, b = found.get(name, "its default"), expected.get(name, "its default")
        if isinstance(a, dict) and isinstance(b, dict):
            if inner := difference(a, b, f"{where}{name}."):
                return inner
        elif a != b:
            return f"was made with {where}{name} = {a}, and the config has {b}"
    return None


def check_code(results: Results, code: Mapping[str, str]) -> list[str]:
    """Log a warning for each result of another version of its stage's code; returns the warnings."""
    warnings = []
    for made in results.all():
        by = made.record.get("code")
        if by and code.get(made.stage) and by != code[made.stage]:
            warnings.append(f"{made.path} was made by another version of stages.{made.stage}")
    for warning in warnings:
        logger.warning("%s", warning)
    return warnings
