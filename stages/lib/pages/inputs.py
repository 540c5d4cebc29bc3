"""Everything that the sections of the report read: manifests, scores, curves, warnings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.lib import files, manifest
from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.manifest import Manifest
from stages.lib.render.chart import Chart
from stages.lib.results.curves import Curves
from stages.lib.results.differences import Differences
from stages.lib.results.manifests import Results
from stages.lib.results.run_tables import RunTable
from stages.lib.results.scores import ScoreRow


@dataclass(frozen=True, kw_only=True)
class ReportInputs:
    """The data of the report.

    `rows`: scores, with their own tokens; `references`: those to compare with; `charts`: by name. `corpora`: {digest:
    manifest of a corpus}, `lists`: {source: its list}. `tables`: of all runs, `sweeps`: of the runs of each. `plan`:
    {run: its plan}. `directory`: that of card.html, from which the paths of manifests start.
    """

    results: Results
    rows: Sequence[ScoreRow]
    references: Sequence[ScoreRow]
    curves: Mapping[str, Curves]
    charts: Mapping[str, Chart]
    differences: Differences
    missing: Sequence[str]
    warnings: Sequence[str]
    corpora: Mapping[str, Manifest]
    lists: Mapping[str, Manifest]
    tables: Sequence[RunTable]
    sweeps: Mapping[str, Sequence[RunTable]]
    predictions: Sequence[Manifest]
    plan: Mapping[str, Any]
    directory: Path

    def last_models(self) -> dict[str, Manifest]:
        """Return the newest model of each run."""
        return {name: made for (name, _), made in self.results.models.items()}  # sorted by step: the last one stays

    def parameters(self, run_name: str) -> int | None:
        """Return the number of parameters of a run's newest export; None without one."""
        exports = [made for (name, _), made in self.results.exports.items() if name == run_name]
        return exports[-1].record.get("parameters") if exports else None

    def corpus_of(self, model: Manifest) -> Manifest | None:
        """Return the manifest of a model's corpus; None if it is not among these."""
        return self.corpora.get(model.identity.get("corpus", ""))


def read_corpora(paths: Iterable[Path]) -> dict[str, Manifest]:
    """Return {digest: corpus} of the paths that exist."""
    made = [manifest.read(path, "index") for path in paths if path.exists()]
    return {found.digest: found for found in made}


def read_lists(paths: Iterable[Path]) -> dict[str, Manifest]:
    """Return {source: its list} of the paths that exist."""
    made = [manifest.read(path, "list") for path in paths if path.exists()]
    return {found.identity["source"]: found for found in made}


def read_plan(path: Path | None) -> dict[str, Any]:
    """Return {run: its plan} of the file that `tools.plan` wrote; {} without it, or with a warning for another file."""
    if path is None or not path.exists():
        return {}
    try:
        made = files.read_json_object(path)
    except UserError:
        made = {}
    if made.get("format") != manifest.PLAN_FORMAT:
        logger.warning("%s is not a plan by this version of tools.plan: run the target `plan` again", path)
        return {}
    return made["runs"]


def shares(numbers: Mapping[str, Any]) -> dict[str, float]:
    """Return the share of each number in their sum; {} of nothing."""
    total = sum(numbers.values())
    return {name: number / total for name, number in numbers.items()} if total else {}
