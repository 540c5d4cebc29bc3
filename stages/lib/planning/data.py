"""Tokens and epochs per source, from the manifest of a corpus. Imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stages.lib import manifest
from stages.lib.tokens import mixture


def by_source(keys: dict[str, Any], steps: int, tokens_per_sample: int, corpus: Path | None) -> dict[str, Any]:
    """Return {source: `tokens` that a pretraining reads of it, `epochs`}; epochs are None without the manifest.

    `keys`: those of the training: weights, data_stages, global_batch_size.
    """
    batch = keys["global_batch_size"]
    changes = [(stage["step"] * batch, stage["weights"]) for stage in keys.get("data_stages", ())]
    samples = mixture.from_history([(0, keys["weights"]), *changes]).taken(steps * batch)
    known = _tokens_of(corpus)
    found = {}
    for source, number in samples.items():
        tokens, has = number * tokens_per_sample, known.get(source)
        found[source] = {"tokens": tokens, "epochs": tokens / has if has else None}
    return found


def _tokens_of(corpus: Path | None) -> dict[str, int]:
    """Return {source: tokens of its training split}; {} without the manifest."""
    if corpus is None or not corpus.is_file():
        return {}
    sources = manifest.read(corpus, "index").identity["sources"]
    return {name: source["train"]["tokens"] for name, source in sources.items()}
