"""A config written out, as if the user had written all of it: digests, plans and messages follow from that.

Runs that are another run with differences, `runs.X: {from: Y, ...}`, stand in full; `model.from` is another key, the
config.json of a model. Keys that are left out, since only one value is possible or equal shares are meant, are filled
in.
"""

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from scripts.config.references import listed
from scripts.config.sections import Run
from stages.lib.errors import UserError
from stages.lib.recipe import below, may_be_null
from stages.lib.sources.kinds.registry import CHAT_KINDS, PROMPT_COMPLETION_KINDS

FROM = "from"

Keys = dict[str, Any]


def written_out(runs: Mapping[str, Any]) -> Keys:
    """Return the runs without `from`. Raises UserError for an unknown run or a cycle."""
    done: Keys = {name: run for name, run in runs.items() if not is_derived(run)}
    for name in runs:
        for derived in reversed(_line(name, runs, done)):
            differences = {key: value for key, value in runs[derived].items() if key != FROM}
            done[derived] = merged(done[runs[derived][FROM]], differences, Run)
    return {name: done[name] for name in runs}


def is_derived(run: Any) -> bool:
    """Return True for a run that is written as another run with differences."""
    return isinstance(run, dict) and FROM in run


def _line(name: str, runs: Mapping[str, Any], done: Mapping[str, Any]) -> list[str]:
    """Return a derived run, the run that it is from, and so on, up to the first that is written out already."""
    line: list[str] = []
    while name not in done:
        if name in line:
            raise UserError(f"runs.{line[0]}.from must not form a cycle, got runs.{name} again")
        line.append(name)
        name = known_run(f"runs.{name}.from", runs[name][FROM], runs)
    return line


def known_run(where: str, name: Any, runs: Mapping[str, Any]) -> str:
    """Return the name of a run that exists and is a mapping of keys. Raises UserError for any other value."""
    if isinstance(name, str) and isinstance(runs.get(name), dict):
        return name
    near = difflib.get_close_matches(str(name), runs, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise UserError(f"{where} must be one of the config's runs ({listed(sorted(runs))}), got {name!r}{hint}")


def merged(base: Any, differences: Keys, hint: Any) -> Keys:
    """Return a mapping with differences: mappings are merged, other values replaced, `null` removes a key.

    `hint`: their type. If a key may be null by its type, `null` is its value. A `null` that removes nothing stays, and
    the check of the config names it.
    """
    made = dict(base)
    for key, value in differences.items():
        of_key = below(hint, key)
        if value is None and key in made and not may_be_null(of_key):
            del made[key]
        elif isinstance(value, dict) and isinstance(made.get(key), dict):
            made[key] = merged(made[key], value, of_key)
        else:
            made[key] = value
    return made


Config = dict[str, Any]


def with_defaults(config: Config) -> Config:
    """Return a config whose runs are written out with these keys filled in; what is no mapping is left as it is.

    tokenizers.NAME.sample      all sources of text, in equal shares
    corpora.NAME.tokenizer      the only tokenizer
    corpora.NAME.sources        all sources of text
    runs.NAME.corpus            the only corpus, for a run with `pretrain`
    runs.NAME.suites            the only suite
    runs.NAME.pretrain.weights  all sources of its corpus, in equal shares
    """
    config = {section: dict(part) if isinstance(part, dict) else part for section, part in config.items()}
    kinds = {name: source.get("kind") for name, source in _entries(config, "sources")}
    texts = [name for name, kind in kinds.items() if kind not in (*PROMPT_COMPLETION_KINDS, *CHAT_KINDS)]
    for name, tokenizer in _entries(config, "tokenizers"):
        if "vocab_size" in tokenizer and tokenizer.get("sample") is None and "path" not in tokenizer and texts:
            config["tokenizers"][name] = tokenizer | {"sample": dict.fromkeys(texts, 1.0)}
    for name, corpus in _entries(config, "corpora"):
        filled = corpus if "sources" in corpus or not texts else corpus | {"sources": texts}
        config["corpora"][name] = _with_only(filled, "tokenizer", config, "tokenizers")
    sources_of = {name: corpus.get("sources") for name, corpus in _entries(config, "corpora")}
    for name, run in _entries(config, "runs"):
        filled = _with_only(run, "suites", config, "suites")
        if isinstance(pretrain := run.get("pretrain"), dict):
            filled = _with_only(filled, "corpus", config, "corpora")
            sources = sources_of.get(str(filled.get("corpus")))
            if "weights" not in pretrain and isinstance(sources, list):
                filled = filled | {"pretrain": pretrain | {"weights": dict.fromkeys(map(str, sources), 1.0)}}
        config["runs"][name] = filled
    return config


def _entries(config: Config, section: str) -> Iterator[tuple[str, Config]]:
    entries = config.get(section)
    for name, entry in list(entries.items()) if isinstance(entries, dict) else ():
        if isinstance(entry, dict):
            yield name, entry


def _with_only(entry: Config, key: str, config: Config, section: str) -> Config:
    """Return an entry whose `key` names the only entry of another section, as a list for `suites`."""
    known = config.get(section)
    if key in entry or not isinstance(known, dict) or len(known) != 1:
        return entry
    return entry | {key: [*known] if key == section else next(iter(known))}


def check_left_out(config: Config) -> None:
    """Raise UserError for a key that a valid config leaves out, and that could name several entries, or none."""
    for name, tokenizer in config["tokenizers"].items():
        if "vocab_size" in tokenizer and "sample" not in tokenizer and "path" not in tokenizer:
            raise UserError(f"tokenizers.{name}.sample is missing: the config has no source of text")
    for name, corpus in config["corpora"].items():
        if "sources" not in corpus:
            raise UserError(f"corpora.{name}.sources is missing: the config has no source of text")
        _check_key(config, corpus, f"corpora.{name}.tokenizer", "tokenizers")
    for name, run in config["runs"].items():
        _check_key(config, run, f"runs.{name}.suites", "suites")
        if "pretrain" in run:
            _check_key(config, run, f"runs.{name}.corpus", "corpora")


def _check_key(config: Config, entry: Config, where: str, section: str) -> None:
    if where.rpartition(".")[2] not in entry:
        known = listed(sorted(config[section]))
        raise UserError(f"{where} is missing: the config has several {section} ({known})")
