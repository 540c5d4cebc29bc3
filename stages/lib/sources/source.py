"""Sources: the recipe that describes one, its list of files, and the inputs of a part, which must not change."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.lib import manifest
from stages.lib.errors import UserError
from stages.lib.manifest import ListManifest
from stages.lib.manifest_types import CutFile, InputFile, ListedFile
from stages.lib.recipe import default_of, identity
from stages.lib.recipe import load as load_recipe
from stages.lib.sources import filters, reading, spans, storage
from stages.lib.sources.kinds.kind import SourceFields, SourceKind
from stages.lib.sources.kinds.registry import FIELDS_OF_SOME_KINDS, KINDS, kind_of
from stages.lib.sources.spans import Span
from stages.lib.sources.storage import Status

ARCHIVE_ENDINGS = (".xz", ".zip", ".tar", ".tgz", ".tar.gz", ".7z")
"""Of files that no kind reads."""

FORMER_IDENTITY = ("max_malformed",)
"""Operation keys that were identity keys once, and may stand in the identity of earlier manifests."""

METADATA_FILES = ("config.json", "dataset_dict.json", "dataset_info.json", "dataset_infos.json", "dummy_data.zip")
"""Files of a directory that Hugging Face's datasets does not take for data."""


@dataclass(frozen=True, kw_only=True)
class SourceRecipe(SourceFields):
    """A source of documents, or of conversations or prompt-completion pairs to fine-tune on."""

    kind: str = identity(choices=tuple(KINDS))
    """text: a file is a document; a file of more than 16 MiB is cut at line ends into documents of about that size.
    jsonl: a line is a document. parquet, arrow: a row is a document; a page of parquet, and a record batch of Arrow, is
    held in memory as a whole. warc: the main text of an HTML response, or a text of a WET file. html: that of a file.
    datatrove, dolma, nemo_curator: directories as these tools write them, of JSON lines or parquet, with their ids.
    python-code and python-prose: the modules of the Python installation, and their
    docstrings. For fine-tuning alone: chat: a JSON line, or a row of parquet, has the messages of a conversation.
    prompt_completion: it has a prompt and a completion. preference: it has a prompt, a chosen and a rejected
    completion, for `finetune.dpo`; without that it is prompt_completion data with the chosen ones. python-statements:
    statements of the Python installation, and what they do in words."""

    def check(self, where: str) -> None:
        """Raise UserError if a field does not fit the kind."""
        kind = kind_of(self)
        if kind.needs_paths != bool(self.paths):
            expected = "be left out" if self.paths else "name at least one file or glob"
            raise UserError(f"{where}.paths must {expected} for the kind {self.kind}, got {self.paths}")
        for field in dataclasses.fields(self):
            written = getattr(self, field.name) != default_of(field)
            if written and field.name in FIELDS_OF_SOME_KINDS and field.name not in kind.fields:
                raise UserError(f"{where}.{field.name} must be left out for the kind {self.kind}")
        if self.token_ids_field is not None and self.text_field != "text":
            raise UserError(f"{where}.text_field must be left out beside token_ids_field, got {self.text_field}")
        if self.token_ids_field is not None and self.filters.some:
            raise UserError(f"{where}.filters must be left out beside token_ids_field: filters read text")
        if self.token_ids_field is not None and self.mask:
            raise UserError(f"{where}.mask must be left out beside token_ids_field: it replaces text")
        if self.filters.c4_quality is not None and not kind.has_documents:
            raise UserError(
                f"{where}.filters.c4_quality must be left out for the kind {self.kind}: it removes lines of documents"
            )
        for number, path in enumerate(self.paths):
            if secret := storage.credential_of(path):
                instead = "remove it from the URL and put it into ~/.netrc, or where the tools of the store read it"
                if secret != "a password":
                    instead = "write ${NAME} in place of its value, and set the environment variable NAME for all jobs"
                raise UserError(
                    f"{where}.paths[{number}] has {secret}, which manifests and reports would show: {instead}"
                )


def read_list(path: Path | str) -> tuple[ListManifest, str, SourceRecipe]:
    """Return (manifest, name, recipe) of a source's list. Raises UserError if the file is another manifest."""
    listed = manifest.read(path, "list")
    return listed, listed.identity["source"], recipe_of(listed)


def recipe_of(listed: ListManifest) -> SourceRecipe:
    """Return the recipe of a source by its list, with the place of the classifier of its filters."""
    operation = {key: value for key, value in listed.record.items() if key in FORMER_IDENTITY}
    where = f"sources.{listed.identity['source']}"
    recipe = load_recipe(SourceRecipe, listed.identity["recipe"] | operation, where)
    if recipe.filters.quality is None:
        return recipe
    placed = filters.placed(recipe.filters, classifier_path(listed), listed.identity["classifier"])
    return dataclasses.replace(recipe, filters=placed)


def classifier_path(listed: ListManifest) -> Path:
    """Return the path of the manifest of the classifier that filters a source, by the source's list."""
    return Path(os.path.normpath(listed.directory / listed.record["classifier_manifest"]))


def comparable(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return the identity keys of a source's recipe in a manifest, without those of FORMER_IDENTITY."""
    return {key: value for key, value in recipe.items() if key not in FORMER_IDENTITY}


def check_paths(where: str, recipe: SourceRecipe) -> None:
    """Raise UserError if a local path of a source matches no file; it stops at the first file of each path.

    `where`: the key of the source. URLs are not opened.
    """
    for pattern in recipe.paths:
        if not storage.matches(pattern):
            raise UserError(f"{where}.paths: {pattern} matches no file")


def list_files(name: str, recipe: SourceRecipe, left_out: Counter[str] | None = None) -> dict[str, Status]:
    """Return {file name: Status} of a source's files, sorted. Raises UserError if a path matches none.

    `left_out` counts what its directories and globs hold beside them, by reason or ending.
    """
    left_out = Counter() if left_out is None else left_out
    kind = kind_of(recipe)
    if not kind.needs_paths:
        return kind.own_files()
    found: dict[str, Status] = {}
    for pattern in recipe.paths:
        beside: Counter[str] = Counter()
        matched = storage.find(pattern, beside)
        for file in [file for file in matched if not kind.takes(file)]:
            beside["of attributes"] += 1
            del matched[file]
        if storage.is_remote(pattern) or os.path.isdir(pattern):
            others = [file for file in matched if not _is_taken(kind, storage.without_query(file))]
            beside.update(os.path.splitext(storage.without_query(file))[1] or "no ending" for file in others)
            for file in others:
                del matched[file]
        if not matched:
            counts = f" (left out: {counted(beside)})" if +beside else ""
            raise UserError(f"sources.{name}.paths: {pattern} matches no file{counts}")
        left_out += beside
        found |= matched
    places: dict[object, str] = {}
    for path in sorted(found):
        first = places.setdefault(found[path].place or path, path)
        if first != path:
            raise UserError(f"sources.{name}.paths must match each file once, and {first} and {path} are one file")
        if not path.isprintable():  # no UTF-8, or a line end that would break a message
            raise UserError(f"sources.{name}.paths must match files whose names are printable text, got {path!a}")
        file_name = storage.without_query(path)
        if file_name.endswith(_refused_endings(kind)) or (kind.owns_endings and not file_name.endswith(kind.endings)):
            raise UserError(f"sources.{name}.paths must match files of the kind {recipe.kind}, got {path}")
    return dict(sorted(found.items()))


def counted(left_out: Counter[str]) -> str:
    """Return the counts of `list_files` as text, the largest first."""
    return ", ".join(f"{count:,} {reason}" for reason, count in (+left_out).most_common())


def _refused_endings(kind: SourceKind) -> tuple[str, ...]:
    """Return the endings of archives, and those that belong to other kinds alone."""
    owned = [ending for other in KINDS.values() if other.owns_endings for ending in other.endings]
    return (*ARCHIVE_ENDINGS, *(ending for ending in owned if ending not in kind.endings))


def _is_taken(kind: SourceKind, path: str) -> bool:
    """Return True if a file of a directory belongs to the source: READMEs and the like do not."""
    if os.path.basename(path) in METADATA_FILES:
        return False
    if not kind.endings:
        return not path.endswith(_refused_endings(kind))
    return (os.path.splitext(path)[0] if reading.is_compressed(path) else path).endswith(kind.endings)


def spans_of_part(recipe: SourceRecipe, listed: Sequence[ListedFile], part: int, parts: int) -> list[Span]:
    """Return the spans of one part of a source."""
    return spans.of_part(listed, part, parts, kind_of(recipe).can_be_cut)


def states_of(recipe: SourceRecipe, listed: ListManifest, chosen: Iterable[Span]) -> dict[str, storage.Status]:
    """Return {name: Status} of the files of some spans, for `documents.read` to compare; call it before `described`."""
    if not kind_of(recipe).needs_paths:
        return {}
    sizes = {file["name"]: file["bytes"] for file in listed.identity["files"]}
    found = {}
    for name in {span.name for span in chosen}:
        if storage.is_remote(name):  # `described` checks that it is as it was listed
            found[name] = storage.Status(sizes[name], listed.record["etags"][name])
        elif os.path.exists(name):  # `described` reports a missing file
            found[name] = storage.status(name)
    return found


def digest_of_examples(listed: ListManifest, recipe: SourceRecipe, inputs: Sequence[InputFile]) -> str:
    """Return the digest of a source that is read whole, by its inputs as of `described_inputs`."""
    known = {"source": listed.identity["source"], "recipe": listed.identity["recipe"], "inputs": inputs}
    return manifest.digest_of({**known, **filters.code_of(recipe.filters)})


def described_inputs(recipe: SourceRecipe, listed: ListManifest, chosen: Iterable[Span]) -> list[InputFile]:
    """Return the content of spans of a listed source for a manifest.

    Raises UserError if a file is not as it was listed.
    """
    kind, sizes = kind_of(recipe), {file["name"]: file["bytes"] for file in listed.identity["files"]}
    found: list[InputFile] = []
    for span in chosen:
        name = span.name
        cut: CutFile = {} if span.end is None else {"first": span.first, "end": span.end}
        if storage.is_remote(name):
            status = storage.status(name)
            if status.etag != listed.record["etags"][name]:
                raise UserError(f"{name} changed after {listed.path} was written; rerun with -R list")
            found.append({"name": name, **cut, "bytes": status.bytes, "etag": status.etag})
        else:
            path = kind.root() / name
            manifest.check_size(path, sizes[name], listed.path)
            try:
                found.append({"name": name, **cut, **manifest.describe(path, *kind.extent(span))})
            except OSError as error:
                raise UserError(f"{path} cannot be read: {error.strerror}") from None
    return found
