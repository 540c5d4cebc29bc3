"""The manifests of all models, exports and evaluations, and the checks that they belong together."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from stages.lib import manifest
from stages.lib.errors import UserError
from stages.lib.manifest import Manifest
from stages.lib.scoring.inputs import kept_manifest

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


def stale(path: Path, why: str) -> UserError:
    """Return the error for a result that must be made again."""
    return UserError(f"{path} {why}; delete {path} and run the workflow again")
