"""What the entries of a config say of each other: that they exist, and fit. Each mistake is one sentence."""

import itertools

from scripts.config_runs import TRAINED_BY, corpus_of, milestones_of

PROMPT_COMPLETION_KINDS = ("prompt_completion", "python-docstrings")
"""Kinds of sources that hold pairs."""

TAKEN = ("path", "bos", "eos")
"""Keys of a tokenizer that is taken as it is."""

OF_PROMPT_COMPLETION = ("completion_choice", "completion_bits")
"""Tasks that read pairs."""


class ConfigError(Exception):
    """A mistake in the config: one sentence."""


def check_references(config):
    """Raise ConfigError for the first mistake. `config`: one that fits the schema."""
    for section, check in CHECKS.items():
        for name, entry in config[section].items():
            check(config, f"{section}.{name}", entry)
    for name, run in config["runs"].items():  # each by itself is right by now
        if "pretrain" in run and "run" in run.get("initial", {}):
            _check_one_tokenizer(config, f"runs.{name}", run)


def _must_be_one_of(section, config, where, name):
    if name not in config[section]:
        known = ", ".join(sorted(config[section])) or "none"
        raise ConfigError(f"{where} must be one of the config's {section} ({known}), got {name!r}")


def _must_be_a_source(config, where, name, of_pairs=False):
    _must_be_one_of("sources", config, where, name)
    kind = config["sources"][name]["kind"]
    if (kind in PROMPT_COMPLETION_KINDS) != of_pairs:
        wanted = f"pairs (the kinds {' and '.join(PROMPT_COMPLETION_KINDS)})" if of_pairs else "text"
        raise ConfigError(f"{where} must be a source of {wanted}, got {name!r} of the kind {kind}")


def _check_tokenizer(config, where, tokenizer):
    if "path" in tokenizer:
        for key in tokenizer:
            if key not in TAKEN:
                raise ConfigError(f"{where}.{key} must be left out beside {where}.path: nothing is trained")
    elif "sample" not in tokenizer:
        raise ConfigError(
            f"{where} must have vocabulary and sample, or path, got {' and '.join(tokenizer) or 'nothing'}"
        )
    else:
        for key in TAKEN:
            if key in tokenizer:
                raise ConfigError(f"{where}.{key} must be left out without {where}.path: what is trained has its own")
    for source in tokenizer.get("sample", ()):
        _must_be_a_source(config, f"{where}.sample", source)


def _check_corpus(config, where, corpus):
    _must_be_one_of("tokenizers", config, f"{where}.tokenizer", corpus["tokenizer"])
    for source in corpus["sources"]:
        _must_be_a_source(config, f"{where}.sources", source)


def _check_suite(config, where, suite):
    asking = [task for task in suite["tasks"] if task in OF_PROMPT_COMPLETION]
    if "prompt_completion" in suite:
        _must_be_a_source(config, f"{where}.prompt_completion", suite["prompt_completion"], of_pairs=True)
        if not asking:
            raise ConfigError(
                f"{where}.tasks must have {' or '.join(OF_PROMPT_COMPLETION)}, which alone read "
                f"{where}.prompt_completion"
            )
    elif asking:
        raise ConfigError(
            f"{where}.prompt_completion is missing: it must be the source of pairs that {asking[0]} asks of"
        )


def _check_run(config, where, run):
    given = [name for name in TRAINED_BY if name in run]
    if len(given) != 1:
        found = " and ".join(given) or "neither"
        raise ConfigError(f"{where} must have pretrain, or finetune for a tuned run, got {found}")
    for suite in run["suites"]:
        _must_be_one_of("suites", config, f"{where}.suites", suite)
    if "corpus" in run:
        _must_be_one_of("corpora", config, f"{where}.corpus", run["corpus"])
    if "initial" in run:
        _check_initial(config, where, run["initial"])
    (_check_pretrained if "pretrain" in run else _check_tuned)(config, where, run)
    _check_milestones(f"{where}.{given[0]}.milestones", run[given[0]])


def _check_pretrained(config, where, run):
    if "prompt_completion" in run:
        raise ConfigError(f"{where}.prompt_completion must be left out: a run with pretrain reads its corpus")
    if ("initial" in run) != (run["pretrain"].get("initial") is not None):
        missing, other = f"{where}.pretrain.initial", f"{where}.initial"
        if "initial" not in run:
            missing, other = other, missing
        raise ConfigError(f"{missing} is missing: {other} says that training goes on from another model")
    sources = config["corpora"][run["corpus"]]["sources"]
    data_stages = run["pretrain"].get("data_stages", [])
    given = {f"data_stages[{number}].weights": phase["weights"] for number, phase in enumerate(data_stages)}
    for key, weights in ({"weights": run["pretrain"]["weights"]} | given).items():
        for source in weights:
            if source not in sources:
                raise ConfigError(
                    f"{where}.pretrain.{key} must name sources of corpus {run['corpus']} ({', '.join(sources)}), "
                    f"got {source!r}"
                )


def _check_tuned(config, where, run):
    _must_be_a_source(config, f"{where}.prompt_completion", run["prompt_completion"], of_pairs=True)
    if "model" in run:
        raise ConfigError(f"{where}.model must be left out: a tuned run has the model that it is tuned from")
    if "run" in run["initial"] and "corpus" in run:
        raise ConfigError(f"{where}.corpus must be left out: a tuned run has the corpus of its initial run")
    if "path" in run["initial"] and "corpus" not in run:
        raise ConfigError(f"{where}.corpus is missing: it must say with which corpus {where}.initial.path is scored")


def _check_initial(config, where, initial):
    if set(initial) not in ({"run", "step"}, {"path"}):
        raise ConfigError(f"{where}.initial must have run and step, or path, got {' and '.join(initial) or 'nothing'}")
    line, at = [where], initial
    while "run" in at:
        _must_be_one_of("runs", config, f"{line[-1]}.initial.run", at["run"])
        if f"runs.{at['run']}" in line:
            raise ConfigError(f"{where}.initial must not lead back to where it came from: runs.{at['run']}")
        line.append(f"runs.{at['run']}")
        at = config["runs"][at["run"]].get("initial", {})
    if "run" in initial:
        _check_step(f"{where}.initial.step", initial, config["runs"][initial["run"]])


def _check_step(where, initial, run):
    milestones = milestones_of(run) if set(TRAINED_BY) & set(run) else []
    if initial["step"] not in milestones:
        known = ", ".join(map(str, milestones))
        raise ConfigError(f"{where} must be a milestone of run {initial['run']} ({known}), got {initial['step']}")


def _check_one_tokenizer(config, where, run):
    before = corpus_of(config["runs"], run["initial"]["run"])
    wanted, found = (config["corpora"][corpus]["tokenizer"] for corpus in (before, run["corpus"]))
    if wanted != found:
        raise ConfigError(f"{where}.corpus must have the tokenizer of its initial run ({wanted}), and has {found}")


def _check_milestones(where, recipe):
    milestones = recipe.get("milestones", [])
    for earlier, later in itertools.pairwise(milestones):
        if later <= earlier:
            raise ConfigError(f"{where} must increase, got {later} after {earlier}")
    if milestones and milestones[-1] > recipe["steps"]:
        raise ConfigError(f"{where} must be at most steps ({recipe['steps']}), got {milestones[-1]}")


CHECKS = {"tokenizers": _check_tokenizer, "corpora": _check_corpus, "suites": _check_suite, "runs": _check_run}
