"""Files outside the results directory that results were made from, compared with what is there now before each plan.

Files are compared by size and time first. Where these differ, or none are kept, their sha256 counts; it is kept in a
cache by size and times. A store's URL is not opened: the job that reads it compares its etag.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from stages.lib import files
from stages.lib.chat import template as chat_templates
from stages.lib.errors import UserError
from stages.lib.files import Sha256
from stages.lib.manifest import ListManifest, Manifest
from stages.lib.manifest_types import InputFile
from stages.lib.render.numbers import several
from stages.lib.scoring import inputs, scored_model
from stages.lib.sources import source, storage
from stages.lib.sources.kinds.registry import kind_of
from stages.lib.sources.source import SourceRecipe
from stages.lib.sources.spans import Span

KEPT = "outside.json"
NAMED = 3
"""Files that a sentence names at most."""

HASHED_BYTES = 8 << 30
"""Bytes of a source with new times that are hashed in one plan."""


class Outside:
    """The files outside the results directory. `recipes`: {key: recipe of the config}. `read`: {path: Manifest} of the
    manifests that exist, `parts` what the config says of them, see `report.stale`. `cache`: the directory of the cache.
    """

    def __init__(
        self,
        recipes: Mapping[str, Any],
        read: Mapping[str, Manifest],
        parts: Mapping[str, Mapping[str, Any]],
        cache: Path,
    ) -> None:
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
