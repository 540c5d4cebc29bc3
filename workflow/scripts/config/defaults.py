"""Keys that a config may leave out since only one value is possible, or equal shares are meant.

They are filled in as if the user had written them, so that recipes, digests and messages are those of a full config.
"""

from collections.abc import Iterator
from typing import Any

from scripts.config.references import CHAT_KINDS, PROMPT_COMPLETION_KINDS, ConfigError, listed

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
    """Raise ConfigError for a key that a valid config leaves out, and that could name several entries, or none."""
    for name, tokenizer in config["tokenizers"].items():
        if "vocab_size" in tokenizer and "sample" not in tokenizer and "path" not in tokenizer:
            raise ConfigError(f"tokenizers.{name}.sample is missing: the config has no source of text")
    for name, corpus in config["corpora"].items():
        if "sources" not in corpus:
            raise ConfigError(f"corpora.{name}.sources is missing: the config has no source of text")
        _check_key(config, corpus, f"corpora.{name}.tokenizer", "tokenizers")
    for name, run in config["runs"].items():
        _check_key(config, run, f"runs.{name}.suites", "suites")
        if "pretrain" in run:
            _check_key(config, run, f"runs.{name}.corpus", "corpora")


def _check_key(config: Config, entry: Config, where: str, section: str) -> None:
    if where.rpartition(".")[2] not in entry:
        known = listed(sorted(config[section]))
        raise ConfigError(f"{where} is missing: the config has several {section} ({known})")
