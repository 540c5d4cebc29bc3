"""Facts about the runs and sources of a checked config, as text for a person."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stages.lib.errors import UserError
from stages.lib.planning import data
from stages.lib.sources import source, storage
from stages.lib.sources.source import SourceRecipe
from stages.lib.space import amount

TRAININGS = ("pretrain", "finetune")


def facts_of(parts: Mapping[str, Mapping[str, Any]], recipes: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return {"runs": lines, "sources": lines}. `parts`, `recipes`: parts of the plan, and their recipes, by key."""
    runs = [
        _run(where, parts[where], recipe) for where, recipe in recipes.items() if parts[where]["stage"] in TRAININGS
    ]
    sources = [_source(where, recipe) for where, recipe in recipes.items() if parts[where]["stage"] == "list"]
    return {"runs": runs, "sources": sources}


def _run(where: str, part: Mapping[str, Any], recipe: Any) -> str:
    name, stage = where.removeprefix("runs.").rpartition(".")[::2]
    milestones = [Path(path).stem.lstrip("0") for path in part["milestones"]]
    how = stage if part.get("origin", name) == name else f"{stage}, the model of run {part['origin']}"
    if recipe.steps is None:
        length = f"{recipe.epochs} epochs"
    else:
        tokens = recipe.steps * recipe.global_batch_size * recipe.seq_len
        length = f"{recipe.steps:,} steps, {'' if stage == 'pretrain' else 'up to '}{tokens:,} tokens"
        evaluations = data.validation(recipe, dataclasses.asdict(recipe), [*map(int, milestones)])
        length += f", validation at most {evaluations['validation_share']:.0%} more"
    return f"run {name}: {how}, {length}; milestones {', '.join(milestones)}"


def _source(where: str, recipe: SourceRecipe) -> str:
    name = where.removeprefix("sources.")
    remote = [path for path in recipe.paths if storage.is_remote(path.removeprefix("file://"))]
    if remote:
        paths = "1 remote path, which is" if len(remote) == 1 else f"{len(remote)} remote paths, which are"
        return f"source {name}: {recipe.kind}, {paths} not opened"
    try:
        left_out: Counter[str] = Counter()
        found = source.list_files(name, recipe, left_out)
    except UserError as error:
        return f"source {name}: {error}"
    number = "1 file" if len(found) == 1 else f"{len(found):,} files"
    size = amount(sum(file.bytes for file in found.values()))
    beside = f"; left out: {source.counted(left_out)}" if +left_out else ""
    return f"source {name}: {recipe.kind}, {number}, {size}{beside}"
