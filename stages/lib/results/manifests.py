"""The manifests of all models, exports and evaluations; the checks that they belong together, and to the config."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from stages.lib import manifest
from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.manifest import ContaminationManifest, EvaluationManifest, ExportManifest, Manifest, ModelManifest
from stages.lib.scoring.inputs import kept_manifest

MILESTONE = re.compile(r"(?P<unit>epoch)?(?P<number>\d+)\.json")
"""File name of the manifest of a milestone."""

ModelKey = tuple[str, int]
"""(run, step)"""

EvaluationKey = tuple[str, int, str]
"""(run, step, suite)"""

BaselineKey = tuple[str, str, str]
"""(baseline, corpus, suite)"""

ContaminationKey = tuple[str, str]
"""(corpus, suite)"""


class Results:
    """The manifests that exist, by their keys, sorted."""

    def __init__(
        self,
        models: Iterable[Path],
        exports: Iterable[Path],
        evaluations: Iterable[Path],
        baselines: Iterable[Path] = (),
        contamination: Iterable[Path] = (),
    ) -> None:
        self.absent: list[str] = []
        self.models: dict[ModelKey, ModelManifest] = self._read(models, *manifest.MODELS)
        self.exports: dict[ModelKey, ExportManifest] = self._read(exports, "convert")
        self.evaluations: dict[EvaluationKey, EvaluationManifest] = self._read(evaluations, "evaluate")
        self.baselines: dict[BaselineKey, EvaluationManifest] = self._read(baselines, "evaluate")
        self.contamination: dict[ContaminationKey, ContaminationManifest]
        self.contamination = self._read(contamination, "find_contamination")

    def _read(self, paths: Iterable[Path], *stages: str) -> dict[Any, Any]:
        results = {}
        for path in paths:
            if path.exists():
                result = manifest.read(path, *stages)
                results[_key(result)] = result
            else:
                self.absent.append(str(path))
        return dict(sorted(results.items()))

    def all(self) -> list[Manifest]:
        """Return all manifests: models, exports, evaluations, baselines' scores, contamination."""
        kinds = (self.models, self.exports, self.evaluations, self.baselines, self.contamination)
        return [result for kind in kinds for result in kind.values()]

    def contamination_of(self, evaluation: EvaluationManifest) -> ContaminationManifest | None:
        """Return the contamination of an evaluation's corpus by its suite; None if it is not known."""
        return self._by_corpus.get((evaluation.identity.get("corpus"), evaluation.path.stem))

    @functools.cached_property
    def _by_corpus(self) -> dict[tuple[str | None, str], ContaminationManifest]:
        return {(result.identity["corpus"], result.identity["suite"]): result for result in self.contamination.values()}

    def runs(self) -> list[str]:
        """Return the names of the runs, sorted."""
        return sorted({key[0] for kind in (self.models, self.exports, self.evaluations) for key in kind})

    def last_models(self) -> dict[str, ModelManifest]:
        """Return the newest model of each run."""
        return {name: model for (name, _), model in self.models.items()}  # sorted by step: the last one stays

    def last_exports(self) -> dict[str, ExportManifest]:
        """Return the newest export of each run."""
        return {name: export for (name, _), export in self.exports.items()}

    def tuned_from(self, run_name: str) -> ModelKey | None:
        """Return (run, step) of the model that a run was fine-tuned from; None if it is not among these models."""
        of_run = [result for (name, _), result in self.models.items() if name == run_name]
        tuned = [result for result in of_run if manifest.trained_by(result) == "finetune"]
        return self._by_checkpoint.get(tuned[-1].identity["initial"]) if tuned else None

    @functools.cached_property
    def _by_checkpoint(self) -> dict[str, ModelKey]:
        """The first model of each checkpoint digest, as (run, step): hashed only once for all tuned runs."""
        keys: dict[str, ModelKey] = {}
        for key, result in self.models.items():
            keys.setdefault(manifest.checkpoint_digest(result), key)
        return keys

    def at(self, place: str) -> Manifest | None:
        """Return the manifest of a run by its path below runs/; None if it is not among these."""
        return self._by_place.get(place)

    @functools.cached_property
    def _by_place(self) -> dict[str, Manifest]:
        of_runs = [result for kind in (self.models, self.exports, self.evaluations) for result in kind.values()]
        return {place: result for result in of_runs for place in _places(result.path)}

    def missing(self, expected: Mapping[str, Any]) -> list[str]:
        """Return the missing results: given paths that do not exist, and milestones in `expected` without a path."""
        missing = list(self.absent)
        given = {place for path in missing for place in _places(Path(path))}
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


def _places(path: Path) -> list[str]:
    """Return the paths below runs/ that a path may end in: RUN/models/STEP.json, or RUN/eval/STEP/SUITE.json."""
    return ["/".join(path.absolute().parts[-parts:]) for parts in (3, 4)]


def _check_kept(evaluation: EvaluationManifest) -> None:
    """Raise UserError if an evaluation is not the one that stages.evaluate kept beside its tasks."""
    path = kept_manifest(evaluation.path)
    if path.exists() and manifest.read(path, "evaluate").digest != evaluation.digest:
        raise stale(evaluation.path, f"has other scores than {path}")


def _key(result: Manifest) -> tuple[str | int, ...]:
    """Return the key of a manifest in Results, by its path and its step."""
    name, above, *further = (directory.name for directory in result.path.absolute().parents)
    stem, step = result.path.stem, result.identity.get("step")
    if result.stage == "find_contamination":
        return name, stem
    if result.stage in manifest.MODELS:
        return above, step
    if result.stage == "convert":
        return further[0], step
    return (above, name, stem) if step is None else (further[0], step, stem)  # a baseline has no step


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
    for (run_name, _), result in results.models.items():
        if run_name in runs:
            _check_model(result, runs[run_name], results)
    for (run_name, _), export in results.exports.items():
        if run_name in runs:
            _compare(export, runs[run_name]["convert"])
    for (_, _, suite), scores in [*results.evaluations.items(), *results.baselines.items()]:
        if suite in suites:  # of this run, or of a run that was tuned from it
            _compare(scores, suites[suite])


def _check_model(result: ModelManifest, run: Mapping[str, Any], results: Results) -> None:
    stage_name, recipe = result.stage, result.identity["recipe"]
    if stage_name not in run:
        raise stale(result.path, f"was made by stages.{stage_name}, and the config names another stage")
    if stage_name == manifest.AVERAGE:
        _compare(result, run[stage_name], recipe.get(stage_name, {}))
        for step, digest in result.identity.get("models", {}).items():
            milestone = results.models.get((run["initial"]["run"], int(step)))
            if milestone is not None and milestone.digest != digest:
                raise stale(result.path, f"is the mean of other weights than {milestone.path} has now")
        return
    if stage_name == "finetune":  # its model is that of the run that it was tuned from
        recipe = {name: value for name, value in recipe.items() if name != "model"}
    written = run[stage_name]
    if (model_config := run.get("model_config")) is not None:  # the shape of the config.json that `model.from` names
        from stages.lib.huggingface import config_json

        written = {**written, "model": config_json.model_identity(model_config, written.get("model", {}))}
    _compare(result, written, recipe)
    initial = run.get("initial", {})
    if "digest" in initial and result.identity.get("initial") != initial["digest"]:
        raise stale(result.path, f"was trained from another model than {initial['path']} holds now")
    origin = results.at(initial.get("model", ""))
    if origin is not None and result.identity.get("initial") != manifest.checkpoint_digest(origin):
        raise stale(result.path, f"was trained from another model than {origin.path}")


def _compare(result: Manifest, expected: Mapping[str, Any], recipe: Mapping[str, Any] | None = None) -> None:
    why = difference(result.identity["recipe"] if recipe is None else recipe, expected)
    if why is not None:
        raise stale(result.path, why)


def difference(recipe: Mapping[str, Any], expected: Mapping[str, Any], where: str = "") -> str | None:
    """Return in words the first difference of a manifest's recipe to the config's; None if they are equal."""
    for name in sorted(set(recipe) | set(expected)):
        a, b = recipe.get(name, "its default"), expected.get(name, "its default")
        if isinstance(a, dict) and isinstance(b, dict):
            if inner := difference(a, b, f"{where}{name}."):
                return inner
        elif a != b:
            return f"was made with {where}{name} = {a}, and the config has {b}"
    return None


def check_code(results: Results, code: Mapping[str, str]) -> list[str]:
    """Log a warning for each result of another version of its stage's code; returns the warnings."""
    warnings = []
    for result in results.all():
        by = result.record.get("code")
        if by and code.get(result.stage) and by != code[result.stage]:
            warnings.append(f"{result.path} was made by another version of stages.{result.stage}")
    for warning in warnings:
        logger.warning("%s", warning)
    return warnings
