"""Inputs of a model card: the manifests of a model, its export, data and scores, which must belong together."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from stages.lib import files, manifest
from stages.lib.chat import template as chat_template
from stages.lib.errors import UserError
from stages.lib.huggingface.weight_files import CONFIG
from stages.lib.results import curves
from stages.lib.results.curves import Training
from stages.lib.results.manifests import name_of_model, stale
from stages.lib.scoring.inputs import PARITY

AnyManifest = TypeVar("AnyManifest", bound=manifest.Manifest)


@dataclass(frozen=True, kw_only=True)
class CardInputs:
    """The manifests that a card is made from.

    `lists`: {source: its list}. `evaluations`: {suite: scores of this export}. `baselines`: {name of another model:
    {suite: its scores}}. `contamination`: {suite: rates of its tasks}. `licenses`: {source: license}.
    """

    name: str
    model: manifest.ModelManifest
    export: manifest.ExportManifest
    corpus: manifest.CorpusManifest
    lists: Mapping[str, manifest.ListManifest]
    evaluations: Mapping[str, manifest.EvaluationManifest]
    baselines: Mapping[str, Mapping[str, manifest.EvaluationManifest]]
    contamination: Mapping[str, manifest.ContaminationManifest]
    licenses: dict[str, str]

    @functools.cached_property
    def config(self) -> dict[str, Any]:
        """The export's config.json."""
        return self._read(CONFIG)

    @functools.cached_property
    def tokenizer(self) -> dict[str, Any]:
        """The export's tokenizer.json."""
        return self._read("tokenizer.json")

    def _read(self, name: str) -> dict[str, Any]:
        """Read a file of the export. Raises UserError if it changed since the export was made."""
        path = self.export.output(name)
        manifest.check_content(path, self.export.identity["outputs"][name], self.export.path)
        return files.read_json_object(path)

    @functools.cached_property
    def parity(self) -> dict[str, Any]:
        """The parity.json beside the export. Raises UserError unless its check passed."""
        path = self.export.directory / PARITY
        report = files.read_json_object(path)
        if report.get("passed") is not True:
            raise stale(self.export.path, f"has no card: {path} does not state that the parity check passed")
        if PARITY in (described := self.export.record.get("files", {})):
            manifest.check_content(path, described[PARITY], self.export.path)
        return report

    @property
    def recipe(self) -> dict[str, Any]:
        """The identity keys of the recipe of the training."""
        return self.model.identity["recipe"]

    @property
    def step(self) -> int:
        """The milestone."""
        return self.model.identity["step"]

    @property
    def is_tuned(self) -> bool:
        """True if the model was fine-tuned."""
        return manifest.trained_by(self.model) == "finetune"

    @property
    def has_initial(self) -> bool:
        """True if the training started from another model."""
        return self.is_tuned or "initial" in self.model.identity

    @property
    def initial_name(self) -> str | None:
        """The model that the training started from, without its place on this machine; None if it is not known."""
        return name_of_model(self.model.record.get("initial"))

    @property
    def tuned_on(self) -> list[str]:
        """The sources that the model was fine-tuned on."""
        return sorted(self.model.identity.get("tuned_on", ()))

    @property
    def has_chat_template(self) -> bool:
        """True if the export has a chat template."""
        return chat_template.FILE in self.export.identity["outputs"]

    @property
    def run_directory(self) -> Path:
        """The run directory of the training, which holds its logs."""
        return self.model.directory / self.model.record["run_directory"]

    @functools.cached_property
    def training(self) -> Training:
        """The training up to the milestone; empty if the run directory is gone."""
        return curves.read(self.run_directory, self.step)

    def manifests(self) -> list[manifest.Manifest]:
        """Return all manifests that the card is made from."""
        baselines = [scores for suites in self.baselines.values() for scores in suites.values()]
        several = [*self.lists.values(), *self.evaluations.values(), *self.contamination.values(), *baselines]
        return [self.model, self.export, self.corpus, *several]


def check(inputs: CardInputs) -> None:
    """Raise UserError if the manifests do not belong to one model."""
    model, export, corpus = inputs.model, inputs.export, inputs.corpus
    if export.identity["model"] != model.digest:
        raise UserError(f"--export {export.path} was made from another model than --model {model.path}")
    if export.identity["corpus"] != corpus.digest:
        raise UserError(f"--export {export.path} was trained on another corpus than --corpus {corpus.path}")
    for scores in inputs.evaluations.values():
        if scores.identity["export"] != export.digest:
            raise UserError(f"--evaluations {scores.path} has the scores of another export than --export {export.path}")
    for rates in inputs.contamination.values():
        if rates.identity.get("corpus", corpus.digest) != corpus.digest:
            raise UserError(f"--contamination {rates.path} is of another corpus than --corpus {corpus.path}")
    for source in corpus.identity["sources"]:
        if source not in inputs.lists:
            raise UserError(f"--lists must name the list of each source of {corpus.path}: {source} is missing")


def by_suite(manifests: Iterable[AnyManifest], option: str) -> dict[str, AnyManifest]:
    """Return {suite: manifest} of files that are named by their suite. Raises UserError if a suite is named twice."""
    read: dict[str, AnyManifest] = {}
    for result in manifests:
        first = read.setdefault(result.path.stem, result)
        if first is not result:
            raise UserError(f"{option} must name each suite once: {first.path} and {result.path} are of the same suite")
    return dict(sorted(read.items()))


def read_baselines(paths: Iterable[Path]) -> dict[str, dict[str, manifest.EvaluationManifest]]:
    """Return {name: {suite: scores}} of other models.

    NAME/CORPUS/SUITE.json is of a baseline NAME, RUN/eval/00000300/SUITE.json of step 300 of a run.
    """
    read: dict[str, dict[str, manifest.EvaluationManifest]] = {}
    for path in paths:
        result = manifest.read(path, "evaluate")
        above = path.absolute().parents
        step = result.identity.get("step")
        name = above[1].name if step is None else f"{above[2].name}, step {step}"
        read.setdefault(name, {})[path.stem] = result
    return read
