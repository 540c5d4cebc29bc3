"""The identity of a run: its directory is named after it, and its checkpoints and manifests carry it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from stages.lib import manifest
from stages.lib.manifest_types import OwnerIdentity

DIRECTORY_KEYS = ("recipe", "corpus", "tuned_on", "template", "initial")
"""Keys whose digest names the run directory, as far as a run has them."""

OWNER_KEYS = (*DIRECTORY_KEYS, "tokenizer")
"""Keys in which a checkpoint and its run must agree, as far as a run has them."""


@dataclass(frozen=True, kw_only=True)
class RunIdentity:
    """Plain data that describes a run. A field that is None has no key in the JSON."""

    recipe: dict[str, Any]
    """The recipe's identity fields that differ from their defaults, the model's included."""

    corpus: str
    """Digest of the corpus."""

    tokenizer: str
    """Digest of the tokenizer."""

    vocab_size: int
    """Number of rows of the embedding: of the tokenizer's ids, or more as in the initial model."""

    data: dict[str, Any] | None = None
    """Order of the samples of a pretraining, see `tokens.data_order`."""

    tuned_on: dict[str, str] | None = None
    """Digest of each source of a fine-tuning, by name."""

    template: str | None = None
    """Text of the chat template of a fine-tuning on conversations."""

    initial: str | None = None
    """Digest of the model whose weights the run starts from."""

    model: dict[str, Any]
    """All fields of the model's recipe."""

    adapter: dict[str, Any] | None = None
    """All fields of LoRA's recipe, and the dtype of the weights that it freezes (`base_dtype`), if adapters alone are
    trained."""

    steps_before: int = 0
    """Steps of the learning-rate schedule taken before this run."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields that are set, as a checkpoint's commit.json holds them."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: value for name, value in fields.items() if value is not None}

    def owner(self) -> OwnerIdentity:
        """Return the fields of OWNER_KEYS that are set, as a milestone's manifest holds them."""
        known = self.to_json()
        return cast(OwnerIdentity, {key: known[key] for key in OWNER_KEYS if key in known})

    def digest(self) -> str:
        """Return the sha256 that names the run directory."""
        known = self.to_json()
        return manifest.digest_of({key: known[key] for key in DIRECTORY_KEYS if key in known})

    def first_difference(self, other: Mapping[str, Any], keys: Sequence[str]) -> str | None:
        """Return the first of `keys` whose value in `other`, plain data, is another than here; None if all agree."""
        known = self.to_json()
        return next((key for key in keys if other.get(key) != known.get(key)), None)
