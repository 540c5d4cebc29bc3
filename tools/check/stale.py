"""Manifests that were made by another config than the one there is now, whatever Snakemake remembers of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stages.lib import manifest
from stages.lib.errors import UserError
from stages.lib.manifest import Manifest
from stages.lib.results.manifests import difference
from stages.lib.sources import source

Parts = Mapping[str, Mapping[str, Any]]
"""{path of a manifest: what the config says of it}: `recipe`, the name of its recipe; `inputs`, {key of its identity:
path of the manifest whose digest it has}; of a part of a corpus `source`, the name of its source's recipe; of a corpus
`sources`, their names; of a milestone `initial`, the manifest of the model that it starts from, or, for a model at a
path, the name of its own run.
"""


class Stale:
    """The manifests of `parts` that exist. `identities`: {name of a recipe: its identity keys by the config}."""

    def __init__(self, parts: Parts, identities: Mapping[str, Mapping[str, Any]]) -> None:
        self.parts, self.identities = parts, identities
        self.read: dict[str, Manifest] = {}
        for path in parts:
            try:
                if Path(path).exists():
                    self.read[path] = manifest.read(path)
            except UserError:  # the stage that reads it names the damage
                continue

    def reasons(self, initial: Mapping[str, str]) -> dict[str, str]:
        """Return {path: reason} of the stale manifests. `initial`: {run: digest of the model that it starts from}."""
        found = {path: self._reason(made, self.parts[path], initial) for path, made in self.read.items()}
        return {path: reason for path, reason in found.items() if reason is not None}

    def last_milestone(self, paths: Sequence[str]) -> tuple[int, int] | None:
        """Return (step, steps of the run when it was trained) of the last milestone that exists; None without one."""
        made = [self.read[path] for path in paths if path in self.read]
        steps = made[-1].record.get("horizon", {}).get("steps") if made else None
        return None if steps is None else (made[-1].identity["step"], steps)

    def _reason(self, made: Manifest, part: Mapping[str, Any], initial: Mapping[str, str]) -> str | None:
        identity = made.identity
        if reason := self._recipe_reason(made, part.get("recipe", "")):
            return reason
        of_source = self.identities.get(part.get("source", ""))
        of_part = source.comparable(identity.get("source_recipe", {}))
        if of_source is not None and (reason := difference(of_part, of_source)):
            return reason
        if "sources" in part and sorted(identity.get("sources", ())) != sorted(part["sources"]):
            names = [", ".join(sorted(names)) for names in (identity.get("sources", ()), part["sources"])]
            return f"was made of the sources {names[0]}, and the config has {names[1]}"
        for key, path in part.get("inputs", {}).items():
            found = identity.get(key)
            if isinstance(found, dict):  # with other figures beside the digest, or digests of several names
                found = found.get("digest")
                if found is None:
                    continue
            if path in self.read and found != self.read[path].digest:
                return f"was made from another {key} than {path}"
        models = [self.read[path].digest for path in part.get("models", ()) if path in self.read]
        if (
            models
            and len(models) == len(part["models"])
            and sorted(identity.get("models", {}).values()) != sorted(models)
        ):
            return f"was made from other models than {part['models'][0]} and those beside it"
        return self._initial_reason(identity, part.get("initial"), initial)

    def _recipe_reason(self, made: Manifest, name: str) -> str | None:
        expected, found = self.identities.get(name), made.identity.get("recipe")
        if expected is None or not isinstance(found, dict):
            return None
        if name.startswith("sources."):
            found = source.comparable(found)
        stage_name = name.rpartition(".")[2]
        if stage_name in manifest.MODELS and made.stage != stage_name:
            return f"was made by stages.{made.stage}, and the config has {stage_name}"
        if stage_name == manifest.AVERAGE:  # beside the recipe of the training
            found = found.get(stage_name, {})
        if stage_name == "finetune":  # its model is that of the run that it was tuned from
            found = {key: value for key, value in found.items() if key != "model"}
        if name.startswith("tokenizers."):  # a custom tokenizer's content counts, not its place
            expected = {key: value for key, value in expected.items() if key != "path"}
        return difference(found, expected)

    def _initial_reason(self, identity: Mapping[str, Any], name: str | None, initial: Mapping[str, str]) -> str | None:
        if name is None:
            return None
        if name in self.read:
            expected: str | None = manifest.checkpoint_digest(self.read[name])
        else:
            expected = initial.get(name)
        if expected is None or identity.get("initial") == expected:
            return None
        return f"was trained from another model than {name if name in self.read else f'runs.{name}.initial'} has now"
