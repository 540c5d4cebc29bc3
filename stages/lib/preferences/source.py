"""The preferences of a source that stages.list lists: data for preference tuning."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stages.lib import manifest
from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.sources import inputs, source, spans, storage
from stages.lib.sources.kinds.registry import PREFERENCE_KINDS, kind_of
from stages.lib.sources.split import TRAIN, VALIDATION, split_of


@dataclass(frozen=True)
class Preference:
    """A prompt and two completions, the first of them preferred. `id`: unique in the source."""

    id: str
    prompt: str
    chosen: str
    rejected: str


@dataclass(frozen=True)
class PreferenceSource:
    """The preferences of a source, by split, in the order of the files.

    `digest`: of the source's recipe, and the names and contents of its files.
    """

    name: str
    digest: str
    train: list[Preference]
    validation: list[Preference]


def read(path: Path | str) -> PreferenceSource:
    """Read the preferences of a source. `path`: the manifest of stages.list.

    Raises UserError if the source holds something else, a file is not as it was listed, or a record is malformed.
    """
    listed, name, recipe = source.read_list(path)
    kind = kind_of(recipe)
    if not kind.is_preference:
        expected = " or ".join(PREFERENCE_KINDS)
        raise UserError(f"sources.{name}.kind must be {expected} for finetune.dpo, got {recipe.kind}")
    chosen = spans.whole(file["name"] for file in listed.identity["files"])
    before = inputs.states(recipe, listed, chosen)
    described = inputs.described(recipe, listed, chosen)
    splits: dict[str, list[Preference]] = {TRAIN: [], VALIDATION: []}
    for identifier, key, *texts in kind.preferences(recipe, [file["name"] for file in described]):
        splits[split_of(key, recipe.validation)].append(Preference(identifier, *texts))
    storage.check_unchanged(before)
    train, validation = splits[TRAIN], splits[VALIDATION]
    logger.info("source %s: %s training preferences, %s for validation", name, len(train), len(validation))
    digest = manifest.digest_of({"source": name, "recipe": listed.identity["recipe"], "inputs": described})
    return PreferenceSource(name, digest, train, validation)
