"""Tokens and epochs per source, and those of the evaluations, from the manifest of a corpus. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stages.lib import manifest
from stages.lib.sources.entries import TRAIN, VALIDATION
from stages.lib.tokens import mixture
from stages.lib.training.settings.recipe import TrainRecipe


def by_source(keys: dict[str, Any], steps: int, tokens_per_sample: int, corpus: Path | None) -> dict[str, Any]:
    """Return {source: `tokens` that a pretraining reads of it, `epochs`}; epochs are None without the manifest.

    `keys`: those of the training: weights, data_stages, global_batch_size.
    """
    batch = keys["global_batch_size"]
    changes = [(stage["step"] * batch, stage["weights"]) for stage in keys.get("data_stages", ())]
    samples = mixture.from_history([(0, keys["weights"]), *changes]).taken(steps * batch)
    known = _tokens_of(corpus, TRAIN)
    found = {}
    for source, number in samples.items():
        tokens, has = number * tokens_per_sample, known.get(source)
        found[source] = {"tokens": tokens, "epochs": tokens / has if has else None}
    return found


def validation(
    recipe: TrainRecipe, keys: Mapping[str, Any], milestones: Sequence[int], corpus: Path | None = None
) -> dict[str, Any]:
    """Return the number of `evaluations`, the `validation_tokens` that each reads, and their time as a share of that of
    the steps, `validation_share`; {} of a tuning in epochs, whose steps are not known.

    The tokens are at most so many: without the corpus, and in tuning, the size of the split is not known.
    """
    if recipe.steps is None:
        return {}
    sources = set(keys["weights"]).union(*(stage["weights"] for stage in keys.get("data_stages", ())))
    known, most = _tokens_of(corpus, VALIDATION), recipe.validation_tokens(len(sources), milestones)
    tokens = sum(min(most, known.get(source, most)) for source in sources)
    return {
        "evaluations": recipe.num_evaluations(milestones, recipe.steps),
        "validation_tokens": tokens,
        "validation_share": recipe.validation_share(tokens, milestones),
    }


def _tokens_of(corpus: Path | None, split: str) -> dict[str, int]:
    """Return {source: tokens of its split}; {} without the manifest."""
    if corpus is None or not corpus.is_file():
        return {}
    sources = manifest.read(corpus, "index").identity["sources"]
    return {name: source[split]["tokens"] for name, source in sources.items()}
