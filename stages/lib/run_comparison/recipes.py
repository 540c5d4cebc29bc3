"""Differences between the recipes, corpora and tokenizers of models, by their manifests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stages.lib import manifest
from stages.lib.manifest import Manifest
from stages.lib.run_comparison.models import ComparedModel

DEFAULT = "default"
"""Value of a key that a recipe does not have: only keys that differ from their defaults are in a manifest."""

ABSENT = "-"
DIGITS = 12  # of a digest that are shown

Table = dict[str, list[str]]
"""{name of a row: a cell for each model}"""


def overview(models: Sequence[ComparedModel], directory: Path) -> Table:
    """Return what each model is, whether it differs or not: stage, tokens, parameters, corpus, tokenizer.

    `directory`: the results, whose corpora and tokenizers are named after their digests.
    """
    corpora = _by_digest(directory.glob("tokens/*/manifest.json"))
    tokenizers = _by_digest(directory.glob("tokenizers/*/manifest.json"))
    rows: Table = {name: [] for name in ("stage", "training tokens", "parameters", "corpus", "tokenizer")}
    for model in models:
        identity = model.model.identity
        rows["stage"].append(model.model.stage)
        rows["training tokens"].append(f"{identity['tokens']:,}")
        parameters = model.export.record.get("parameters") if model.export else None
        rows["parameters"].append(ABSENT if parameters is None else f"{parameters:,}")
        rows["corpus"].append(_named(identity.get("corpus"), corpora))
        rows["tokenizer"].append(_named(identity.get("tokenizer"), tokenizers))
    return rows


def differences(models: Sequence[ComparedModel], directory: Path) -> Table:
    """Return the keys of recipes and corpora in which the models differ, sorted.

    A corpus that is not among the results has no keys.
    """
    corpora = _by_digest(directory.glob("tokens/*/manifest.json"))
    recipes = [flatten(model.model.identity.get("recipe", {})) for model in models]
    rows = _differing(recipes, DEFAULT)
    found = [corpora.get(model.model.identity.get("corpus", "")) for model in models]
    if all(found):
        rows |= _differing([_corpus_keys(corpus) for corpus in found if corpus], ABSENT)
    for key in ("initial", "prompt_completion"):
        rows |= _differing([_digest_key(model.model.identity, key) for model in models], ABSENT)
    return rows


def flatten(data: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return nested mappings as {dotted key: value as text}."""
    flat: dict[str, str] = {}
    for key, value in data.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return flat


def _differing(found: Sequence[Mapping[str, str]], missing: str) -> Table:
    keys = sorted({key for flat in found for key in flat})
    rows = {key: [flat.get(key, missing) for flat in found] for key in keys}
    return {key: cells for key, cells in rows.items() if len(set(cells)) > 1}


def _corpus_keys(corpus: Manifest) -> dict[str, str]:
    """Return the size of each source, and the digest of its text."""
    keys = {}
    for source, splits in corpus.identity["sources"].items():
        train = splits["train"]
        contents = manifest.digest_of([shard["sha256"] for shard in train["shards"]])[:DIGITS]
        keys[f"corpus.{source}"] = f"{train['documents']:,} documents, {train['tokens']:,} tokens ({contents})"
    return keys


def _digest_key(identity: Mapping[str, Any], key: str) -> dict[str, str]:
    return {key: identity[key][:DIGITS]} if key in identity else {}


def _by_digest(paths: Any) -> dict[str, Manifest]:
    return {made.digest: made for made in map(manifest.read, sorted(paths))}


def _named(digest: str | None, known: Mapping[str, Manifest]) -> str:
    if digest is None:
        return ABSENT
    made = known.get(digest)
    return f"{made.directory.name} ({digest[:DIGITS]})" if made else digest[:DIGITS]
