"""Differences between the recipes, corpora and tokenizers of models, by their manifests."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stages.lib import manifest
from stages.lib.errors import UserError
from stages.lib.manifest import Manifest
from tools.compare.models import ComparedModel

DEFAULT = "default"
"""Value of a key that a recipe does not have: only keys that differ from their defaults are in a manifest."""

ABSENT = "-"
DIGITS = 12  # of a digest that are shown

Table = dict[str, list[str]]
"""{name of a row: a cell for each model}"""


class KnownData:
    """The corpora and tokenizers of the results `directory`, by digest. A damaged manifest is not known."""

    def __init__(self, directory: Path) -> None:
        """Read their manifests."""
        self.corpora = _by_digest(directory.glob("tokens/*/manifest.json"))
        self.tokenizers = _by_digest(directory.glob("tokenizers/*/manifest.json"))


def overview(models: Sequence[ComparedModel], known: KnownData) -> Table:
    """Return what each model is, whether it differs or not."""
    rows: Table = {}
    for model in models:
        identity = model.model.identity
        parameters = model.export.record.get("parameters") if model.export else None
        cells = {
            "stage": model.model.stage,
            "training tokens": f"{identity['tokens']:,}",
            "parameters": ABSENT if parameters is None else f"{parameters:,}",
            "corpus": _named(identity.get("corpus"), known.corpora),
            "tokenizer": _named(identity.get("tokenizer"), known.tokenizers),
            "initial model": model.initial or _named(identity.get("initial"), {}),
        }
        for key, cell in cells.items():
            rows.setdefault(key, []).append(cell)
    return rows


def differences(models: Sequence[ComparedModel], known: KnownData) -> Table:
    """Return the keys of recipes and corpora in which the models differ, sorted.

    A corpus has keys if all models' corpora are among the results.
    """
    identities = [model.model.identity for model in models]
    rows = _differing([flatten(identity.get("recipe", {})) for identity in identities], DEFAULT)
    corpora = [known.corpora.get(identity.get("corpus", "")) for identity in identities]
    found = [corpus for corpus in corpora if corpus is not None]
    if len(found) == len(models):
        rows |= _differing([_corpus_keys(corpus) for corpus in found], ABSENT)
    tuned_on = [identity.get("tuned_on", {}).items() for identity in identities]
    return rows | _differing(
        [{f"tuned_on.{name}": _named(digest, {}) for name, digest in one} for one in tuned_on], ABSENT
    )


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


def _by_digest(paths: Iterable[Path]) -> dict[str, Manifest]:
    found = {}
    for path in sorted(paths):
        with contextlib.suppress(UserError):  # the stage that reads it names the damage
            made = manifest.read(path)
            found[made.digest] = made
    return found


def _named(digest: str | None, known: Mapping[str, Manifest]) -> str:
    if digest is None:
        return ABSENT
    made = known.get(digest)
    return f"{made.directory.name} ({digest[:DIGITS]})" if made else digest[:DIGITS]
