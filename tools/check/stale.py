"""Manifests that were made by another config, or from other files outside the results directory, than there are now.

They are found before each plan, whatever Snakemake remembers of them. Files are compared by size and time first. Where
these differ, or none are kept, their sha256 counts; it is kept in a cache by size and times. A store's URL is not
opened: the job that reads it compares its etag.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from stages.lib import files, manifest
from stages.lib.chat import template as chat_templates
from stages.lib.errors import UserError
from stages.lib.files import Sha256
from stages.lib.manifest import ListManifest, Manifest
from stages.lib.manifest_types import InputFile
from stages.lib.render.numbers import several
from stages.lib.results.manifests import difference
from stages.lib.scoring import inputs, scored_model
from stages.lib.sources import source, storage
from stages.lib.sources.kinds.registry import kind_of
from stages.lib.sources.source import SourceRecipe
from stages.lib.sources.spans import Span

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


KEPT = "outside.json"
NAMED = 3
"""Files that a sentence names at most."""

HASHED_BYTES = 8 << 30
"""Bytes of a source with new times that are hashed in one plan."""


class Outside:
    """The files outside the results directory. `recipes`: {key: recipe of the config}. `read`: {path: Manifest} of the
    manifests that exist, `parts` what the config says of them. `cache`: the directory of the cache.
    """

    def __init__(self, recipes: Mapping[str, Any], read: Mapping[str, Manifest], parts: Parts, cache: Path) -> None:
        self.recipes, self.read, self.parts, self.cache = recipes, read, parts, cache / KEPT

    def reasons(self, initial: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
        """Return {path: reason} of the manifests that were made from a file of the user's that is another one now.

        `initial`: {run: {"path"} of the model that it starts from}.
        """
        found = {}
        with files.kept_hashes(self.cache) as sha256:
            digests: dict[str, str] = {}  # of the directories of tasks: many manifests have one
            for path, made in self.read.items():
                try:
                    reason = self._reason(made, self.parts[path], initial, sha256, digests)
                except (OSError, UserError):  # the check of the recipe, or the stage, names what is missing
                    continue
                if reason is not None:
                    found[path] = reason
        return found

    def _reason(
        self,
        made: Manifest,
        part: Mapping[str, Any],
        initial: Mapping[str, Mapping[str, str]],
        sha256: Sha256,
        digests: dict[str, str],
    ) -> str | None:
        name = part.get("recipe", "")
        recipe, identity = self.recipes.get(name), made.identity
        if "include" in identity and recipe is not None and recipe.include_path is not None:
            directory = recipe.include_path
            if directory not in digests:
                digests[directory] = inputs.digest_of_directory(Path(directory), sha256)
            if digests[directory] != identity["include"]:
                return f"was made with other task files, or data of tasks, than include_path {directory} has now"
        if "baseline" in identity and (place := part.get("baseline")) and Path(place).is_dir():
            if scored_model.digest_of_files(Path(place), sha256) == identity["baseline"]:
                return None
            return f"was made with other files than {place} has now"
        if made.stage == "train_tokenizer" and getattr(recipe, "path", None) and "taken" in made.record:
            assert recipe is not None
            if sha256(Path(recipe.path)) != made.record["taken"]["sha256"]:
                return f"was made from another tokenizer than {recipe.path} is now"
        if made.stage == "finetune" and "template" in identity and recipe is not None:
            if (place := recipe.template) is not None:
                now: str | None = chat_templates.text_of(place, f"{name}.template")
            else:
                place = initial.get(name.split(".")[1], {}).get("path", "")
                now = (
                    chat_templates.text_beside(Path(place)) if Path(place, "config.json").is_file() and place else None
                )
            if now is not None and now != identity["template"]:
                return f"was trained with another chat template than {place} has now"
        return None

    def sentences(self, listed: Iterable[str]) -> list[str]:
        """Return one sentence per source whose files differ from its list. `listed`: names of the sources' recipes."""
        chosen = {path: made for path, made in self.read.items() if self.parts[path].get("recipe") in set(listed)}
        with files.kept_hashes(self.cache) as sha256:
            found = [self._sentence(path, made, sha256) for path, made in chosen.items() if made.stage == "list"]
        return [sentence for sentence in found if sentence is not None]

    def _sentence(self, path: str, made: ListManifest, sha256: Sha256) -> str | None:
        where = self.parts[path]["recipe"]
        recipe = self.recipes[where]
        local = [pattern for pattern in recipe.paths if not storage.is_remote(pattern.removeprefix("file://"))]
        if kind_of(recipe).needs_paths and not local:
            return None
        sizes = {file["name"]: file["bytes"] for file in made.identity["files"]}
        before = {name: size for name, size in sizes.items() if not storage.is_remote(name)}
        try:
            now = source.list_files(where.removeprefix("sources."), dataclasses.replace(recipe, paths=local))
        except UserError as error:
            return f"{where}: its files are not compared with {path}: {error}"
        gone, new = [name for name in before if name not in now], [name for name in now if name not in before]
        changed, touched, etags = [], {}, made.record["etags"]
        for name, size in before.items():
            if name in now and now[name].bytes != size:
                changed.append(name)
            elif name in now and now[name].etag != etags[name]:
                touched[name] = size
        unknown = ""
        if sum(touched.values()) > HASHED_BYTES:
            unknown = f"{several(len(touched), 'file')} with another time, too large to compare here"
        elif touched:
            changed += self._changed(path, recipe, touched, sha256)
        states = [(changed, "changed"), (new, "new"), (gone, "missing")]
        counted = [f"{several(len(names), 'file')} {state}" for names, state in states if names]
        counted += [unknown] if unknown else []
        if not counted:
            return None
        names = [*changed, *new, *gone, *touched][:NAMED]
        return (
            f"{where}: {', '.join(counted)} since {path} was written ({', '.join(names)}"
            f"{', ...' * (sum(len(names) for names, _ in states) > NAMED)}): nothing runs again by itself; "
            "-R list takes it in"
        )

    def _changed(self, path: str, recipe: SourceRecipe, touched: Iterable[str], sha256: Sha256) -> Iterator[str]:
        """Yield the files with new times that have other content than results were made from, or that none was.

        `path`: the list of the source.
        """
        made, kind = self.read[path], kind_of(recipe)
        name, spans, digests = made.identity["source"], defaultdict[str, list[Any]](list), set[str]()
        for place, other in self.read.items():
            if other.stage == "tokenize" and other.identity["source"] == name:
                for described in other.identity["inputs"]:
                    spans[described["name"]].append(described)
            if name in other.identity.get("tuned_on", {}):
                digests.add(other.identity["tuned_on"][name])
            if "prompt_completion" in other.identity and path in self.parts[place].get("needs", ()):
                digests.add(other.identity["prompt_completion"])
        same_examples = None
        for file in touched:
            for described in spans[file]:
                first, end = described.get("first", 0), described.get("end")
                extent = (0, None) if end is None else kind.extent(Span(file, first, end))
                if sha256(kind.root() / file, *extent) != described["sha256"]:
                    yield file
                    break
            if not spans[file] and same_examples is None:
                same_examples = digests == {_digest_of_examples(made, kind.root(), sha256)}
            if not spans[file] and not same_examples:
                yield file


def _digest_of_examples(listed: ListManifest, root: Path, sha256: Sha256) -> str | None:
    """Return the digest of a source of examples as its files are now; None if one is remote or missing."""
    described: list[InputFile] = []
    for file in listed.identity["files"]:
        if storage.is_remote(file["name"]) or not (root / file["name"]).is_file():
            return None
        described.append({**file, "sha256": sha256(root / file["name"])})
    try:
        return source.digest_of_examples(listed, source.recipe_of(listed), described)
    except UserError:  # the module or the classifier of a filter is missing, which the job names
        return None
