"""The results that there are, and whether they are what the config asks for."""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import stages
from stages.lib import manifest
from stages.lib.errors import UserError
from stages.lib.log import logger


class Results:
    """The manifests that there are: `models` and `exports` by (run, step), `evaluations` by (run, step, suite)."""

    def __init__(self, models, exports, evaluations):
        self.absent = []
        self.models = self._read(models, _model_key)
        self.exports = self._read(exports, _export_key)
        self.evaluations = self._read(evaluations, _evaluation_key)

    def _read(self, paths, key_of):
        found = {}
        for path in paths:
            if path.exists():
                found[key_of(path)] = manifest.read(path)
            else:
                self.absent.append(str(path))
        return dict(sorted(found.items()))

    def all(self):
        """All manifests: models, exports, evaluations."""
        return [*self.models.values(), *self.exports.values(), *self.evaluations.values()]

    def runs(self):
        """The names of the runs, sorted."""
        return sorted({key[0] for found in (self.models, self.exports, self.evaluations) for key in found})

    def tuned_from(self, run_name):
        """(run, step) of the model from which a tuned run's models were made; None where it is none of these."""
        tuned = [made for (name, _), made in self.models.items() if name == run_name and stage_of(made) == "finetune"]
        return self._by_checkpoint.get(tuned[-1].identity["initial"]) if tuned else None

    @functools.cached_property
    def _by_checkpoint(self):
        """The first model of each checkpoint digest, as (run, step): hashed once, not for each tuned run again."""
        found = {}
        for key, made in self.models.items():
            found.setdefault(checkpoint_digest(made), key)
        return found

    def missing(self, expect):
        """What was asked for and is not there: paths, and milestones of `expect` for which no path was given."""
        missing = list(self.absent)
        given = " ".join(missing)
        for run_name, wanted in expect.get("runs", {}).items():
            for step in wanted["milestones"]:
                places = {f"{run_name}/models/{step:08d}.json": (run_name, step) in self.models}
                places[f"{run_name}/export/{step:08d}/manifest.json"] = (run_name, step) in self.exports
                for suite in wanted["suites"]:
                    places[f"{run_name}/eval/{step:08d}/{suite}.json"] = (run_name, step, suite) in self.evaluations
                missing += [place for place, there in places.items() if not there and place not in given]
        return missing

    def check_chain(self):
        """Raise UserError where an export is not of the model beside it, or an evaluation not of the export."""
        for key, export in self.exports.items():
            if key in self.models and export.identity["model"] != self.models[key].digest:
                raise UserError(_stale(export.path, f"was made from another model than {self.models[key].path}"))
        for (run_name, step, _), evaluation in self.evaluations.items():
            export = self.exports.get((run_name, step))
            if export is not None and evaluation.identity["export"] != export.digest:
                raise UserError(_stale(evaluation.path, f"was made from another export than {export.path}"))


def stage_of(model):
    """The name of the stage that made a model's manifest."""
    return "finetune" if "prompt_completion" in model.identity else "pretrain"


def checkpoint_digest(model):
    """What a model that goes on from this one has as `initial` in its identity (`training.initial`, but without torch).

    It is the digest of the checkpoint's files, without the commit marker.
    """
    inside = f"{model.identity.get('checkpoint')}/"
    files = {name.removeprefix(inside): file for name, file in model.identity["outputs"].items()}
    return manifest.digest_of({name: file for name, file in files.items() if name != "commit.json"})


def _model_key(path):
    return path.absolute().parents[1].name, int(path.stem)


def _export_key(path):
    return path.absolute().parents[2].name, int(path.parent.name)


def _evaluation_key(path):
    return path.absolute().parents[2].name, int(path.parent.name), path.stem


def _stale(path, why):
    return f"{path} {why}; delete {path} and run the workflow again"


def check_recipes(results, expect):
    """Raise UserError naming the first manifest that was made under another recipe than the config has now."""
    runs = expect["runs"]
    suites = {name: recipe for wanted in runs.values() for name, recipe in wanted["suites"].items()}
    for (run_name, _), made in results.models.items():
        if run_name in runs:
            _check_model(made, runs[run_name], results)
    for (run_name, _), made in results.exports.items():
        if run_name in runs:
            _compare(made, identity_of(schema_of("convert"), runs[run_name]["convert"]))
    for (_, _, suite), made in results.evaluations.items():
        if suite in suites:  # of a run, or of one that was tuned from it
            _compare(made, identity_of(schema_of("evaluate"), suites[suite]))


def _check_model(made, wanted, results):
    stage_name, found = stage_of(made), made.identity["recipe"]
    if stage_name not in wanted:
        raise UserError(_stale(made.path, f"was made by stages.{stage_name}, and the config asks for another stage"))
    if stage_name == "finetune":  # its model is that of the run that it was tuned from
        found = {name: value for name, value in found.items() if name != "model"}
    _compare(made, identity_of(schema_of(stage_name), wanted[stage_name]), found)
    initial = wanted.get("initial", {})
    origin = results.models.get((initial.get("run"), initial.get("step")))
    if origin is not None and made.identity.get("initial") != checkpoint_digest(origin):
        raise UserError(_stale(made.path, f"goes on from another model than {origin.path}"))


@functools.cache
def schema_of(stage_name):
    """The JSON schema of another stage's recipe, asked from its command line: stages do not import each other."""
    home = str(Path(stages.__file__).resolve().parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([home, os.environ.get("PYTHONPATH", "")]).rstrip(":")}
    command = [sys.executable, "-m", f"stages.{stage_name}", "--schema"]
    return json.loads(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)


def identity_of(schema, asked):
    """What a manifest's identity.recipe holds when `asked` is what the user wrote: see `recipe.written`."""
    made = {}
    for name, value in asked.items():
        field = schema["properties"].get(name, {})
        if field.get("x-kind", "identity") != "identity":
            continue
        nested = next((kind for kind in (field, *field.get("anyOf", ())) if "properties" in kind), None)
        if nested and isinstance(value, dict):
            if below := identity_of(nested, value):
                made[name] = below
            continue
        plain = _converted(field, value)
        if name in schema.get("required", ()) or "default" not in field or plain != field["default"]:
            made[name] = plain
    return made


def _converted(field, value):
    """Numbers that YAML read as text (`1e-3`) as numbers, inside of lists and mappings too."""
    if isinstance(value, dict) and "properties" in field:
        return identity_of(field, value)
    if isinstance(value, dict):
        return {key: _converted(field.get("additionalProperties", {}), item) for key, item in value.items()}
    if isinstance(value, list):
        return [_converted(field.get("items", {}), item) for item in value]
    kinds = [field, *field.get("anyOf", ())]
    if isinstance(value, str) and any(kind.get("type") == ["number", "string"] for kind in kinds):
        return float(value)
    return value


def _compare(made, wanted, found=None, where=""):
    found = made.identity["recipe"] if found is None else found
    for name in sorted(set(found) | set(wanted)):
        a, b = found.get(name, "its default"), wanted.get(name, "its default")
        if isinstance(a, dict) and isinstance(b, dict):
            _compare(made, b, a, f"{where}{name}.")
        elif a != b:
            raise UserError(_stale(made.path, f"was made with {where}{name} = {a}, and the config has {b}"))


def check_code(results, code):
    """Warn where a result was made by other code than there is now; returns the warnings, for the closing text."""
    made_by = [(stage_of(made), made) for made in results.models.values()]
    made_by += [("convert", made) for made in results.exports.values()]
    made_by += [("evaluate", made) for made in results.evaluations.values()]
    warnings = []
    for stage_name, made in made_by:
        by = made.record.get("code")
        if by and code.get(stage_name) and by != code[stage_name]:
            warnings.append(f"{made.path} was made by another version of stages.{stage_name}")
    for warning in warnings:
        logger.warning("%s", warning)
    return warnings
