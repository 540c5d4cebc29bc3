"""Comparison of the recipes in the manifests with those that the config has now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stages.lib import manifest
from stages.lib.log import logger
from stages.lib.manifest import Manifest
from stages.lib.report.results import Results, stale


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
