"""The models that are compared, RUN or RUN:STEP on the command line: their manifests, recipes, data and settings."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.lib import manifest
from stages.lib.errors import UserError
from stages.lib.manifest import EvaluationManifest, ExportManifest, Manifest, ModelManifest
from stages.lib.render.numbers import UNKNOWN
from stages.lib.render.table import Cell, Table
from stages.lib.results import averages
from stages.lib.results.curves import tokens_before
from stages.lib.results.differences import TaskDifference, replicas_of
from stages.lib.results.manifests import ModelKey, Results
from stages.lib.results.run_tables import flat, value_text

DEFAULT = "default"
"""Value of a key that a recipe does not have: only keys that differ from their defaults are in a manifest."""

DIGITS = 12  # of a digest that are shown


@dataclass(frozen=True, kw_only=True)
class ComparedModel:
    """A scored milestone: its manifests, evaluations by suite; `export` is None if it was deleted."""

    run: str
    step: int
    model: ModelManifest
    export: ExportManifest | None
    evaluations: dict[str, EvaluationManifest]

    tokens: int
    """Training tokens, with those of the model that the run was tuned from."""

    initial: str | None
    """The model that the run was tuned from, RUN:STEP; None if there is none, or its run is not compared."""

    @property
    def name(self) -> str:
        """The name in tables: RUN:STEP."""
        return _name((self.run, self.step))


def _name(key: ModelKey) -> str:
    return "{}:{}".format(*key)


def find(directory: Path, texts: Sequence[str]) -> tuple[Results, list[ModelKey]]:
    """Return the manifests of the runs below the results `directory`, and (run, step) of the models that `texts` name.

    Raises UserError if fewer than two are named, one is named twice, or a run or its scores do not exist.
    """
    if len(texts) < 2:
        raise UserError(f"two or more models must be given as RUN or RUN:STEP, the reference first, got {texts[0]}")
    named = [_split(directory, text) for text in texts]
    runs = dict.fromkeys(run for run, _ in named)
    runs |= dict.fromkeys(_replicas(directory, runs))
    homes = [directory / "runs" / run for run in runs]
    patterns = ("models/*.json", "export/*/manifest.json", "eval/*/*.json")
    results = Results(*([path for home in homes for path in sorted(home.glob(pattern))] for pattern in patterns))
    results.check_chain()
    keys = [_key(results, directory, run, step) for run, step in named]
    if twice := [key for key in keys if keys.count(key) > 1]:
        raise UserError(f"each model must be given once, got {_name(twice[0])} {keys.count(twice[0])} times")
    return results, keys


def with_means(results: Results, keys: Sequence[ModelKey], count: int) -> tuple[Results, list[str]]:
    """Return results in which the scores of some models, and of their replicas, are means over `count` milestones, and
    sentences on the suites of which they are not.

    Raises UserError if a model has no mean.
    """
    same, scored = replicas_of(results.models), {(run, step) for run, step, _ in results.evaluations}
    every = {other for key in keys for other in same[key] if other in scored}
    means, problems = averages.averaged(results, dict.fromkeys(sorted(every), count))
    if problems and any(averages.counts_of(means).get(run) is None for run, _ in every):
        raise UserError(problems[0])
    return means, problems


def _replicas(directory: Path, runs: Collection[str]) -> set[str]:
    """Return the runs that differ from one of `runs` by their seed alone."""
    models = {}
    for path in sorted(directory.glob("runs/*/models/*.json")):
        with contextlib.suppress(UserError):  # a damaged manifest of another run is no mistake of these
            model = manifest.read(path, *manifest.MODELS)
            models[path.parents[1].name, model.identity["step"]] = model
    return {other for key, same in replicas_of(models).items() if key[0] in runs for other, _ in same}


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


def _key(results: Results, directory: Path, run: str, step: int | None) -> ModelKey:
    """Return (run, step) of a scored milestone; the newest without a step."""
    scored = sorted({at for name, at, _ in results.evaluations if name == run})
    if not scored or step not in (None, *scored):
        steps = ", ".join(map(str, scored)) or "none"
        at = "" if step is None else f" of step {step}"
        raise UserError(f"{directory / 'runs' / run} must have scores{at}; it has scores of the steps: {steps}")
    key: ModelKey = (run, scored[-1] if step is None else step)
    if key not in results.models:
        raise UserError(f"{directory / 'runs' / run}/models has no manifest of step {key[1]}, but its scores exist")
    return key


def compared(results: Results, key: ModelKey) -> ComparedModel:
    """Return the milestone (run, step) of the results."""
    run, _ = key
    origin, model = results.tuned_from(run), results.models[key]
    return ComparedModel(
        run=run,
        step=key[1],
        model=model,
        export=results.exports.get(key),
        evaluations={suite: one for (*at, suite), one in results.evaluations.items() if tuple(at) == key},
        tokens=model.identity["tokens"] + tokens_before(results)[run],
        initial=_name(origin) if origin else None,
    )


def tables(models: Sequence[ComparedModel], directory: Path) -> tuple[Table, Table]:
    """Return what each model is, and the keys of recipes and corpora in which they differ, sorted.

    Corpora and tokenizers of the results `directory` have names. A corpus has keys if those of all models are there.
    """
    corpora = _by_digest(directory.glob("tokens/*/manifest.json"))
    tokenizers = _by_digest(directory.glob("tokenizers/*/manifest.json"))
    facts: list[dict[str, str]] = []
    for model in models:
        identity = model.model.identity
        parameters = model.export.record.get("parameters") if model.export else None
        facts.append(
            {
                "stage": model.model.stage,
                "training tokens": f"{identity['tokens']:,}",
                "parameters": UNKNOWN if parameters is None else f"{parameters:,}",
                "corpus": _named(identity.get("corpus"), corpora),
                "tokenizer": _named(identity.get("tokenizer"), tokenizers),
                "initial model": model.initial or _named(identity.get("initial"), {}),
            }
        )
    names, identities = [model.name for model in models], [model.model.identity for model in models]
    rows = _differing([_texts(identity.get("recipe", {})) for identity in identities], DEFAULT)
    used = [corpora.get(identity.get("corpus", "")) for identity in identities]
    sizes: list[dict[str, str]] = []
    for corpus in used if all(used) else ():
        sizes.append({})
        for source, splits in corpus.identity["sources"].items() if corpus else ():
            train = splits["train"]
            contents = manifest.digest_of([shard["sha256"] for shard in train["shards"]])[:DIGITS]
            size = f"{train['documents']:,} documents, {train['tokens']:,} tokens"
            sizes[-1][f"corpus.{source}"] = f"{size} ({contents})"
    rows |= _differing(sizes, UNKNOWN)
    tuned_on = [identity.get("tuned_on", {}).items() for identity in identities]
    rows |= _differing([{f"tuned_on.{name}": _named(digest, {}) for name, digest in one} for one in tuned_on], UNKNOWN)
    titles = ["", *names]
    return (
        Table(titles=titles, rows=[[key, *(fact[key] for fact in facts)] for key in facts[0]]),
        Table(titles=titles, rows=[[Cell(text=key, code=True), *cells] for key, cells in rows.items()]),
    )


def _texts(data: Mapping[str, Any]) -> dict[str, str]:
    return {key: value_text(value) for key, value in flat(data).items()}


def _differing(several: Sequence[Mapping[str, str]], missing: str) -> dict[str, list[str]]:
    keys = sorted({key for one in several for key in one})
    rows = {key: [one.get(key, missing) for one in several] for key in keys}
    return {key: cells for key, cells in rows.items() if len(set(cells)) > 1}


def _by_digest(paths: Iterable[Path]) -> dict[str, Manifest]:
    manifests = {}
    for path in sorted(paths):
        with contextlib.suppress(UserError):  # the stage that reads it names the damage
            one = manifest.read(path)
            manifests[one.digest] = one
    return manifests


def _named(digest: str | None, known: Mapping[str, Manifest]) -> str:
    if digest is None:
        return UNKNOWN
    return f"{known[digest].directory.name} ({digest[:DIGITS]})" if digest in known else digest[:DIGITS]


def notes_on_seeds(differences: Sequence[TaskDifference]) -> list[str]:
    """Return a sentence on the noise of a run, if there are differences."""
    if not differences:
        return []
    if any(difference.seeds for difference in differences):
        return ["Where runs differ by their seed alone, scores and differences are means over them."]
    return [
        "The noise of a run is unknown, since no other run differs from these by its seed alone: another seed may turn "
        "a small difference around. The key `seeds` of a run trains such runs."
    ]


def notes(reference: ComparedModel, other: ComparedModel) -> list[str]:
    """Return a sentence for each setting in which the evaluations of two models differ."""
    sentences = [*_only_one_has("suites", reference, other, [*reference.evaluations], [*other.evaluations])]
    if reference.model.identity.get("tokenizer") != other.model.identity.get("tokenizer"):
        sentences.append(
            f"{reference.name} and {other.name} have different tokenizers: max_length tokens of context are other text"
        )
    for suite in sorted(reference.evaluations.keys() & other.evaluations.keys()):
        settings = [_settings(model, suite) for model in (reference, other)]
        sentences += [
            f"suite {suite}: {key} is {settings[0].get(key, DEFAULT)} for {reference.name} and "
            f"{settings[1].get(key, DEFAULT)} for {other.name}"
            for key in sorted(settings[0].keys() | settings[1].keys())
            if settings[0].get(key) != settings[1].get(key)
        ]
        identities = [model.evaluations[suite].identity for model in (reference, other)]
        tasks = [[*identity["results"]] for identity in identities]
        sentences += _only_one_has(f"suite {suite}: tasks", reference, other, *tasks)
        for task in tasks[0]:
            versions = [identity.get("task_versions", {}).get(task, "unknown") for identity in identities]
            if task in tasks[1] and versions[0] != versions[1]:
                of_both = f"version {versions[0]} for {reference.name} and {versions[1]} for {other.name}"
                sentences.append(f"task {task} of suite {suite}: {of_both}")
    return sentences


def _only_one_has(
    what: str, reference: ComparedModel, other: ComparedModel, of_reference: Sequence[str], of_other: Sequence[str]
) -> list[str]:
    both = ((reference, of_reference, of_other), (other, of_other, of_reference))
    return [
        f"{what} of {model.name} alone: {', '.join(more)}"
        for model, own, others in both
        if (more := sorted(set(own) - set(others)))
    ]


def _settings(model: ComparedModel, suite: str) -> dict[str, str]:
    """Return the settings of an evaluation as flat text: its recipe without the names of tasks, versions, device."""
    evaluation = model.evaluations[suite]
    recipe: dict[str, Any] = evaluation.identity["recipe"]
    tasks = recipe.get("tasks", [])
    options = tasks if isinstance(tasks, dict) else [task for task in tasks if not isinstance(task, str)]
    settings = _texts(recipe | {"tasks": options})
    if "max_length" not in recipe and model.export is not None:  # the default is the model's
        settings["max_length"] = str(model.export.identity.get("seq_len"))
    identity: Mapping[str, Any] = evaluation.identity
    settings |= {key: str(identity[key]) for key in ("include", "prompt_completion") if key in identity}
    if evaluation.identity.get("chat_template") is False:
        settings["apply_chat_template"] = "True, and the model has no chat template"
    harness = evaluation.identity.get("harness", evaluation.record.get("versions", {}).get("lm_eval"))
    settings["version of lm_eval"] = str(harness or "unknown")
    settings["device"] = str(evaluation.record.get("device", "unknown"))
    return settings
