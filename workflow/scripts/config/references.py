"""Check of the references between the entries of a config. Each mistake is one sentence."""

import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stages.lib.chat.template import SHIPPED
from stages.lib.errors import UserError
from stages.lib.manifest import AVERAGE, MODELS
from stages.lib.scoring.tasks import local_tasks
from stages.lib.sources.kinds.registry import CHAT_KINDS, PREFERENCE_KINDS, PROMPT_COMPLETION_KINDS

LENGTH = "length"
"""Key of a run of averaged weights that only the workflow writes: what its milestone counts, steps or epochs."""


def training_of(run: dict[str, Any]) -> str:
    """Return the name of the section, and stage, that makes the model of a run."""
    return next(name for name in MODELS if name in run)


def milestones_of(run: dict[str, Any]) -> list[int]:
    """Return the steps, or epochs, after which a run is converted and scored, increasing."""
    recipe = run[training_of(run)]
    if AVERAGE in run:
        return [run["initial"]["step"]] if "step" in run["initial"] else []
    return recipe.get("milestones", [recipe[length_of(run)]])


def length_of(run: dict[str, Any]) -> str:
    """Return the key that says how long a run is trained, and that its milestones count: steps or epochs."""
    return "epochs" if "epochs" in run[training_of(run)] or run.get(LENGTH) == "epochs" else "steps"


def file_name(run: dict[str, Any], milestone: int) -> str:
    """Return the name of a milestone in paths."""
    return f"epoch{milestone:03d}" if length_of(run) == "epochs" else f"{milestone:08d}"


def corpus_of(runs: dict[str, Any], name: str) -> str:
    """Return the name of a run's corpus; a tuned run has that of its initial run."""
    run = runs[name]
    return run["corpus"] if "corpus" in run else corpus_of(runs, run["initial"]["run"])


def tuned_runs(runs: dict[str, Any]) -> list[str]:
    """Return the names of the runs that are fine-tuned."""
    return [name for name, run in runs.items() if training_of(run) == "finetune"]


REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)

SHOWN = 10
"""Names that a sentence has at most."""

Config = dict[str, Any]


def check_references(config: Config) -> None:
    """Raise UserError for the first mistake of a config whose keys and values are valid."""
    for section, check in CHECKS.items():
        for name, entry in config.get(section, {}).items():
            check(config, f"{section}.{name}", entry)
    for name, run in config["runs"].items():  # each run is valid by itself here
        if "pretrain" in run and "run" in run.get("initial", {}):
            corpora = (corpus_of(config["runs"], run["initial"]["run"]), run["corpus"])
            expected, found = (config["corpora"][corpus]["tokenizer"] for corpus in corpora)
            if expected != found:
                raise UserError(
                    f"runs.{name}.corpus must have the tokenizer of its initial run ({expected}), got {found}"
                )
        if "corpus" in run or "run" in run.get("initial", {}):
            _check_sources_of_suites(config, f"runs.{name}", run["suites"], corpus_of(config["runs"], name))


def _check_sources_of_suites(config: Config, where: str, suites: Sequence[str], corpus: str) -> None:
    """Raise UserError for a suite that is made from a source that the corpus of a run does not have."""
    sources = config["corpora"][corpus]["sources"]
    for suite in suites:
        for source in config["suites"][suite].get("sources") or ():
            if source not in sources:
                raise UserError(
                    f"suites.{suite}.sources must name sources of corpus {corpus} ({listed(sources)}), with which "
                    f"{where} is scored, got {source!r}"
                )


def _must_be_one_of(section: str, config: Config, where: str, name: str) -> None:
    known = config.get(section, {})
    if name not in known:
        raise UserError(f"{where} must be one of the config's {section} ({listed(sorted(known))}), got {name!r}")


def listed(names: Sequence[str]) -> str:
    """Return names for a sentence: a sweep makes up to a thousand runs, of which the first are named."""
    return (", ".join(names[:SHOWN]) + ", ..." * (len(names) > SHOWN)) or "none"


def _must_be_a_source(config: Config, where: str, name: str, prompt_completion: bool = False) -> None:
    _must_be_one_of("sources", config, where, name)
    kind = config["sources"][name]["kind"]
    fits = kind in PROMPT_COMPLETION_KINDS if prompt_completion else kind not in (*PROMPT_COMPLETION_KINDS, *CHAT_KINDS)
    if not fits:
        kinds = f"prompt-completion data (kind {' or '.join(PROMPT_COMPLETION_KINDS)})"
        raise UserError(
            f"{where} must be a source of {kinds if prompt_completion else 'text'}, got {name!r} of the kind {kind}"
        )


def _must_have_validation(config: Config, where: str, source: str) -> None:
    if config["sources"][source].get("validation") == 0:
        raise UserError(f"sources.{source}.validation must be greater than 0 for {where}, got 0")


def _check_input_file(where: str, path: str) -> None:
    """Raise UserError if a path cannot be an input of a rule: Snakemake takes braces for wildcards."""
    if set(path) & set("{}") or not path.isprintable() or any(len(part.encode()) > 255 for part in path.split("/")):
        raise UserError(f"{where} must be a path of printable characters without braces, got {path!a:.300}")


def _check_classifier(config: Config, where: str, classifier: Config) -> None:
    for kind in ("good", "bad"):
        for source in classifier[kind]:
            _must_be_a_source(config, f"{where}.{kind}", source)
            if config["sources"][source].get("token_ids_field") is not None:
                raise UserError(f"{where}.{kind} must be sources of text, got {source!r} with token_ids_field")


def _classifier_of(source: Config) -> str | None:
    quality = (source.get("filters") or {}).get("quality")
    return quality and quality["classifier"]


def _check_source(config: Config, where: str, source: Config) -> None:
    """Raise UserError for a classifier that does not exist, or that is trained on what it filters."""
    classifiers = config.get("classifiers", {})
    line = [where]  # a source, and all that its classifier is trained on
    for key in line:
        name = _classifier_of(config["sources"][key.removeprefix("sources.")])
        if name is None:
            continue
        _must_be_one_of("classifiers", config, f"{key}.filters.quality.classifier", name)
        for trained_on in (*classifiers[name]["good"], *classifiers[name]["bad"]):
            if f"sources.{trained_on}" == where:
                raise UserError(
                    f"{where}.filters.quality must not form a cycle: the classifier {name} is trained on "
                    f"{where}; name a source with the same paths and without the filter in classifiers.{name}"
                )
            if f"sources.{trained_on}" not in line and trained_on in config["sources"]:
                line.append(f"sources.{trained_on}")


def _check_tokenizer(config: Config, where: str, tokenizer: Config) -> None:
    if "path" in tokenizer:
        _check_input_file(f"{where}.path", tokenizer["path"])
    for source in tokenizer.get("sample", ()):
        _must_be_a_source(config, f"{where}.sample", source)


def _check_corpus(config: Config, where: str, corpus: Config) -> None:
    _must_be_one_of("tokenizers", config, f"{where}.tokenizer", corpus["tokenizer"])
    for source in corpus["sources"]:
        _must_be_a_source(config, f"{where}.sources", source)
        _must_have_validation(config, where, source)
    for suite in corpus.get("tokenize", {}).get("decontaminate", ()):
        _must_be_one_of("suites", config, f"{where}.tokenize.decontaminate", suite)
        if set(config["suites"][suite]["tasks"]) <= set(local_tasks.NAMES):
            raise UserError(
                f"{where}.tokenize.decontaminate must name suites with other tasks than those of validation data "
                f"({', '.join(local_tasks.NAMES)}), got {suite!r}"
            )


def _check_suite(config: Config, where: str, suite: Config) -> None:
    for source in suite.get("sources") or ():
        _must_be_a_source(config, f"{where}.sources", source)
    reading = [task for task in suite["tasks"] if task in local_tasks.OF_PROMPT_COMPLETION]
    if "prompt_completion" in suite:
        _must_be_a_source(config, f"{where}.prompt_completion", suite["prompt_completion"], prompt_completion=True)
        if not reading:
            raise UserError(
                f"{where}.tasks must have {' or '.join(local_tasks.OF_PROMPT_COMPLETION)}: no other task reads "
                f"{where}.prompt_completion"
            )
    elif reading:
        raise UserError(
            f"{where}.prompt_completion is missing: it must be the prompt-completion source that {reading[0]} reads"
        )


def _check_run(config: Config, where: str, run: Config) -> None:
    given = [name for name in MODELS if name in run]
    if len(given) != 1:
        found = " and ".join(given) or "none of them"
        raise UserError(
            f"{where} must have pretrain, finetune for a tuned run, or average_weights for a mean of milestones, got "
            f"{found}"
        )
    for suite in run["suites"]:
        _must_be_one_of("suites", config, f"{where}.suites", suite)
    if "corpus" in run:
        _must_be_one_of("corpora", config, f"{where}.corpus", run["corpus"])
    _check_length(where, run)
    if "initial" in run:
        _check_initial(config, where, run["initial"])
    {"pretrain": _check_pretrained, "finetune": _check_tuned, "average_weights": _check_averaged}[given[0]](
        config, where, run
    )
    if not run.get("convert", {}).get("merge", True) and run.get("finetune", {}).get("lora") is None:
        raise UserError(f"{where}.convert.merge must be true without {where}.finetune.lora, got false")
    milestones, length = run[given[0]].get("milestones", []), length_of(run)
    for earlier, later in itertools.pairwise(milestones):
        if later <= earlier:
            raise UserError(f"{where}.{given[0]}.milestones must increase, got {later} after {earlier}")
    if milestones and milestones[-1] > (last := run[given[0]][length]):
        raise UserError(f"{where}.{given[0]}.milestones must be at most {length} ({last}), got {milestones[-1]}")
    if run.get("average", 0) > (count := len(milestones_of(run))):
        raise UserError(f"{where}.average must be at most the number of its milestones ({count}), got {run['average']}")


def _check_length(where: str, run: Config) -> None:
    if "finetune" in run and ("steps" in run["finetune"]) == ("epochs" in run["finetune"]):
        found = "both" if "steps" in run["finetune"] else "neither"
        raise UserError(f"{where}.finetune must have steps or epochs, got {found}")


def _check_pretrained(config: Config, where: str, run: Config) -> None:
    if "config" in run.get("initial", {}):
        raise UserError(f"{where}.initial.config must be omitted: a run with pretrain has the config in model")
    before = config["runs"].get(run.get("initial", {}).get("run"), {})
    if AVERAGE in before and (run["pretrain"].get("initial") or {}).get("optimizer") == "keep":
        raise UserError(
            f"{where}.pretrain.initial.optimizer must be reset for averaged weights, which have none, got keep"
        )
    if ("initial" in run) != (run["pretrain"].get("initial") is not None):
        missing, other = f"{where}.pretrain.initial", f"{where}.initial"
        if "initial" not in run:
            missing, other = other, missing
        raise UserError(f"{missing} is missing: {other} makes the training start from another model")
    if "from" in run.get("model", {}):
        _check_input_file(f"{where}.model.from", run["model"]["from"])
    sources = config["corpora"][run["corpus"]]["sources"]
    data_stages = run["pretrain"].get("data_stages", [])
    given = {f"data_stages[{number}].weights": stage["weights"] for number, stage in enumerate(data_stages)}
    for key, weights in ({"weights": run["pretrain"]["weights"]} | given).items():
        for source in weights:
            if source not in sources:
                raise UserError(
                    f"{where}.pretrain.{key} must name sources of corpus {run['corpus']} ({', '.join(sources)}), "
                    f"got {source!r}"
                )
    tokenizer = config["corpora"][run["corpus"]]["tokenizer"]
    needs_tokens = run["pretrain"].get("fill_in_the_middle") is not None
    if needs_tokens and config["tokenizers"][tokenizer].get("fill_in_the_middle") is None:
        raise UserError(
            f"tokenizers.{tokenizer}.fill_in_the_middle is missing: {where}.pretrain.fill_in_the_middle requires "
            "its special tokens ({} for the default names)"
        )


def _check_tuned(config: Config, where: str, run: Config) -> None:
    _check_tuning_data(config, f"{where}.finetune", run["finetune"], run["initial"])
    if "model" in run:
        raise UserError(f"{where}.model must be omitted: a tuned run has the model of its initial run")
    if "run" in run["initial"] and "corpus" in run:
        raise UserError(f"{where}.corpus must be omitted: a tuned run has the corpus of its initial run")
    if "path" in run["initial"] and "corpus" not in run:
        raise UserError(f"{where}.corpus is missing: it must be the corpus that scores {where}.initial.path")
    if "run" in run["initial"] and "config" in run["initial"]:
        raise UserError(f"{where}.initial.config must be omitted: {where}.initial.run has its config")


def _check_averaged(config: Config, where: str, run: Config) -> None:
    initial = run["initial"]
    for key in ("corpus", "model"):
        if key in run:
            raise UserError(f"{where}.{key} must be omitted: averaged weights have the {key} of their initial run")
    if "config" in initial:
        raise UserError(f"{where}.initial.config must be omitted: {where}.initial.run has its config")
    if "step" not in initial:
        found = next(key for key in ("sweep", "path") if key in initial)
        raise UserError(f"{where}.initial must have run and step beside average_weights, got {found}")
    base = config["runs"][initial["run"]]
    if AVERAGE in base:
        raise UserError(f"{where}.initial.run must be a run that is trained, got {initial['run']}, which is averaged")
    count = sum(milestone <= initial["step"] for milestone in milestones_of(base))
    if run["average_weights"]["num_milestones"] > count:
        raise UserError(
            f"{where}.average_weights.num_milestones must be at most the number of milestones of run {initial['run']} "
            f"up to {initial['step']} ({count}), got {run['average_weights']['num_milestones']}"
        )


def _check_tuning_data(config: Config, where: str, recipe: Config, initial: Config) -> None:
    for source in recipe["weights"]:
        _must_be_one_of("sources", config, f"{where}.weights", source)
        _must_have_validation(config, where, source)
    kinds = {source: config["sources"][source]["kind"] for source in recipe["weights"]}
    if recipe.get("dpo") is not None and (len(kinds) != 1 or not set(kinds.values()) <= set(PREFERENCE_KINDS)):
        found = ", ".join(f"{source} ({kind})" for source, kind in kinds.items())
        raise UserError(
            f"{where}.weights must name one source of the kind {' or '.join(PREFERENCE_KINDS)} beside {where}.dpo, "
            f"got {found}"
        )
    # a template must not be missing, nor have no effect; preferences may be conversations or not
    chats = [source for source, kind in kinds.items() if kind in CHAT_KINDS]
    template = recipe.get("template")
    if chats and template is None and not _may_have_template(config, initial):
        raise UserError(
            f"{where}.template is missing: the source {chats[0]} has conversations (kind chat), and the initial model "
            "has no chat template"
        )
    if template is not None and not chats and recipe.get("dpo") is None:
        raise UserError(f"{where}.template must be omitted: no source of {where}.weights has conversations (kind chat)")
    if template is not None and template not in SHIPPED:
        _check_input_file(f"{where}.template", template)


def _may_have_template(config: Config, initial: Config) -> bool:
    """Return whether an initial model may have a chat template: a path, or a run that is tuned with one."""
    while "run" in initial:
        run = config["runs"][initial["run"]]
        if run.get("finetune", {}).get("template") is not None:
            return True
        if "initial" not in run or "pretrain" in run:
            return False
        initial = run["initial"]
    return True


def _check_initial(config: Config, where: str, initial: Config) -> None:
    if set(initial) - {"config"} not in ({"run", "step"}, {"path"}, {"sweep", "run"}):
        found = " and ".join(initial) or "nothing"
        raise UserError(f"{where}.initial must have run and step, or sweep, or path, got {found}")
    line, at = [where], initial
    while "run" in at:
        _must_be_one_of("runs", config, f"{line[-1]}.initial.run", at["run"])
        if f"runs.{at['run']}" in line:
            raise UserError(f"{where}.initial must not form a cycle, got runs.{at['run']} again")
        line.append(f"runs.{at['run']}")
        at = config["runs"][at["run"]].get("initial", {})
    if "step" in initial:
        name, run = initial["run"], config["runs"][initial["run"]]
        _check_length(f"runs.{name}", run)
        milestones = milestones_of(run) if set(MODELS) & set(run) else []
        if initial["step"] not in milestones:
            known = ", ".join(map(str, milestones))
            raise UserError(f"{where}.initial.step must be a milestone of run {name} ({known}), got {initial['step']}")


def _check_baseline(config: Config, where: str, baseline: Config) -> None:
    path = baseline["path"]
    _check_input_file(f"{where}.path", path)
    if Path(path).is_dir():
        if "revision" in baseline:
            raise UserError(f"{where}.revision must be omitted: {where}.path is a directory")
    elif not REPOSITORY.fullmatch(path):
        raise UserError(f"{where}.path must be a directory, or a repository of the Hub (ORG/NAME), got {path!r}")


CHECKS = {
    "classifiers": _check_classifier,
    "sources": _check_source,
    "tokenizers": _check_tokenizer,
    "corpora": _check_corpus,
    "suites": _check_suite,
    "runs": _check_run,
    "baselines": _check_baseline,
}
