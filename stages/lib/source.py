"""Sources of text: which files they have, and which documents stand in them."""

import glob
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from stages.lib import python_source
from stages.lib.errors import UserError
from stages.lib.recipe import identity
from stages.lib.split import split_of

PACKED = (".gz", ".zst", ".bz2", ".xz", ".zip", ".parquet", ".arrow")
KINDS = ("text", "jsonl", "python-code", "python-prose")


@dataclass(frozen=True, kw_only=True)
class SourceRecipe:
    """Where documents come from."""

    kind: str = identity(choices=KINDS)
    """text: a file is a document. jsonl: a line is one. python-code and python-prose: the modules of the Python
    installation, and their docstrings."""

    paths: list[str] = identity([])
    """Globs of the files (`**` goes through folders), relative to the working directory; for text and jsonl."""

    text_field: str = identity("text")
    """The field of a JSON line that holds the text."""

    split_field: str | None = identity(None)
    """The field of a JSON line whose value decides between training and validation. Default: the text itself."""

    validation: float = identity(0.01, minimum=0, maximum=0.9)
    """The share of split keys that is held out of training: of file names for text, of modules for python-*. Every
    source of a corpus must hold out something; 0 is for one that only a tokenizer learns from."""

    def check(self, where):
        """Raise UserError where the paths do not fit the kind."""
        if self.kind.startswith("python-") == bool(self.paths):
            expected = "be left out" if self.paths else "name at least one file or glob"
            raise UserError(f"{where}.paths must {expected} for the kind {self.kind}, got {self.paths}")
        if self.kind != "jsonl" and (self.split_field is not None or self.text_field != "text"):
            raise UserError(f"{where}.text_field and split_field must be left out for the kind {self.kind}")


@dataclass(frozen=True)
class Document:
    """A document: an id that is unique in its source, its text, and the side of the split that it is on."""

    id: str
    text: str
    split: str


@dataclass(frozen=True)
class Dropped:
    """A document that could not be read, and why."""

    id: str
    reason: str


def root_of(recipe):
    """The directory against which the file names of a source are read."""
    return python_source.root() if recipe.kind.startswith("python-") else Path()


def list_files(name, recipe):
    """The names of a source's files, sorted. Raises UserError when there is none."""
    if recipe.kind.startswith("python-"):
        return python_source.modules()
    found = set()
    for pattern in recipe.paths:
        matched = [path for path in glob.glob(pattern, recursive=True) if os.path.isfile(path)]
        if not matched:
            raise UserError(f"sources.{name}.paths must match at least one file, and {pattern} matches none")
        found.update(os.path.normpath(path) for path in matched)
    for path in sorted(found):
        if path.endswith(PACKED):
            raise UserError(f"sources.{name}.paths must match {recipe.kind} files that are not packed, got {path}")
    return sorted(found)


def documents(recipe, names, every_name):
    """Yield a Document or a Dropped for each document of the files `names`.

    `every_name`: all files of the source; python-prose needs them to leave out what stands in several modules.
    """
    if recipe.kind == "jsonl":
        for name in names:
            yield from _lines(recipe, name)
        return
    if recipe.kind == "python-prose":
        read = python_source.prose(names, every_name)
    elif recipe.kind == "python-code":
        read = python_source.code(names)
    else:
        read = ((name, name, Path(name).read_bytes()) for name in names)
    for identifier, key, found in read:
        try:
            text = found.decode("utf-8-sig") if isinstance(found, bytes) else found
        except UnicodeDecodeError:
            yield Dropped(identifier, "not UTF-8")
            continue
        yield Document(identifier, text, split_of(key, recipe.validation))


def _lines(recipe, name):
    import orjson

    with open(name, "rb") as file:
        for number, line in enumerate(file, 1):
            identifier = f"{name}:{number}"
            if not line.strip():
                continue
            try:
                entry = orjson.loads(line)
            except orjson.JSONDecodeError:  # a lone surrogate and invalid UTF-8 as well
                yield Dropped(identifier, "not JSON")
                continue
            text = entry.get(recipe.text_field) if isinstance(entry, dict) else None
            if not isinstance(text, str):
                yield Dropped(identifier, f"no text in {recipe.text_field}")
                continue
            if recipe.split_field is None:
                key = hashlib.sha256(text.encode()).hexdigest()
            elif isinstance(entry.get(recipe.split_field), (str, int)):
                key = str(entry[recipe.split_field])
            else:  # null as well: it would bring all such lines to one side
                yield Dropped(identifier, f"no text or whole number in {recipe.split_field}")
                continue
            yield Document(identifier, text, split_of(key, recipe.validation))
