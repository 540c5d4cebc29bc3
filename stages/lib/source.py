"""Sources: which files they have, and which documents stand in those of text; see pairs.py for the others."""

import dataclasses
import glob
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from stages.lib import packed, python_source
from stages.lib.errors import UserError
from stages.lib.recipe import default_of, identity
from stages.lib.split import split_of

UNREADABLE = (".xz", ".zip", ".tar", ".tgz", ".tar.gz", ".7z", ".arrow")
TEXTS = ("text", "jsonl", "parquet", "python-code", "python-prose")
PAIRS = ("pairs", "python-docstrings")
ROWS = 1024  # of a parquet file, read at once
READ_BY = {  # fields that not every kind reads
    "text_field": ("jsonl", "parquet"),
    "prompt_field": ("pairs",),
    "completion_field": ("pairs",),
    "split_field": ("jsonl", "parquet", "pairs"),
}


@dataclass(frozen=True, kw_only=True)
class SourceRecipe:
    """Where documents, or the pairs that a model is fine-tuned on, come from."""

    kind: str = identity(choices=TEXTS + PAIRS)
    """text: a file is a document. jsonl: a line is one. parquet: a row is one. python-code and python-prose: the
    modules of the Python installation, and their docstrings. To fine-tune on: pairs: a JSON line has a prompt and a
    completion. python-docstrings: headers of functions of the Python installation, and the first lines of their
    docstrings."""

    paths: list[str] = identity([])
    """Globs of the files (`**` goes through folders), relative to the working directory; not for python-*. Files of
    text and of JSON lines may be packed: .gz, .zst, .bz2, .lz4."""

    text_field: str = identity("text")
    """The field of a JSON line, or the column of a parquet file, that holds the text."""

    prompt_field: str = identity("prompt")
    """The field of a JSON line that holds the prompt of a pair. A space before the completion is written in the data:
    nothing is put between the two."""

    completion_field: str = identity("completion")
    """The field of a JSON line that holds the completion of a pair: what a model learns to say after the prompt."""

    split_field: str | None = identity(None)
    """The field of a JSON line, or the column, whose value decides between training and validation. Default: the text
    or the prompt."""

    validation: float = identity(0.01, minimum=0, maximum=0.9)
    """The share of split keys that is held out of training: of file names for text, of modules for python-*. Every
    source of a corpus or of fine-tuning must hold out something; 0 is for one that only a tokenizer learns from."""

    def check(self, where):
        """Raise UserError where the paths do not fit the kind."""
        if self.kind.startswith("python-") == bool(self.paths):
            expected = "be left out" if self.paths else "name at least one file or glob"
            raise UserError(f"{where}.paths must {expected} for the kind {self.kind}, got {self.paths}")
        for field in dataclasses.fields(self):
            written = getattr(self, field.name) != default_of(field)
            if written and self.kind not in READ_BY.get(field.name, (self.kind,)):
                raise UserError(f"{where}.{field.name} must be left out for the kind {self.kind}")


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
        if path.endswith(UNREADABLE) or path.endswith(".parquet") != (recipe.kind == "parquet"):
            raise UserError(f"sources.{name}.paths must match files of the kind {recipe.kind}, got {path}")
    return sorted(found)


def documents(recipe, names, every_name):
    """Yield a Document or a Dropped for each document of the files `names`.

    `every_name`: all files of the source; python-prose needs them to leave out what stands in several modules.
    Raises UserError where the source holds pairs.
    """
    if recipe.kind in PAIRS:
        raise UserError(
            f"a source of a tokenizer or a corpus must be of the kind {', '.join(TEXTS[:-1])} or {TEXTS[-1]}, got "
            f"{recipe.kind}, which is for fine-tuning"
        )
    if recipe.kind in RECORDS:
        for name in names:
            for identifier, record in RECORDS[recipe.kind](recipe, name):
                yield _document(recipe, identifier, record)
        return
    if recipe.kind == "python-prose":
        read = python_source.prose(names, every_name)
    elif recipe.kind == "python-code":
        read = python_source.code(names)
    else:
        read = ((name, name, packed.read(name)) for name in names)
    for identifier, key, found in read:
        try:
            text = found.decode("utf-8-sig") if isinstance(found, bytes) else found
        except UnicodeDecodeError:
            yield Dropped(identifier, "not UTF-8")
            continue
        yield Document(identifier, text, split_of(key, recipe.validation))


def _document(recipe, identifier, record):
    """The Document of a record, a mapping; a Dropped where it is none. A record that is a text says why it is none."""
    if isinstance(record, str):
        return Dropped(identifier, record)
    text = record.get(recipe.text_field) if isinstance(record, dict) else None
    if not isinstance(text, str):
        return Dropped(identifier, f"no text in {recipe.text_field}")
    if recipe.split_field is None:
        key = hashlib.sha256(text.encode()).hexdigest()
    elif isinstance(record.get(recipe.split_field), (str, int)):
        key = str(record[recipe.split_field])
    else:  # null as well: it would bring all such records to one side
        return Dropped(identifier, f"no text or whole number in {recipe.split_field}")
    return Document(identifier, text, split_of(key, recipe.validation))


def _lines(_, name):
    import orjson

    with packed.opened(name) as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    entry = orjson.loads(line)
                except orjson.JSONDecodeError:  # a lone surrogate and invalid UTF-8 as well
                    entry = "not JSON"
                else:
                    entry = entry if isinstance(entry, dict) else {}
                yield f"{name}:{number}", entry


def _rows(recipe, name):
    import pyarrow
    from pyarrow import parquet

    wanted = [field for field in (recipe.text_field, recipe.split_field) if field is not None]
    try:
        with parquet.ParquetFile(name) as file:
            for column in wanted:
                if column not in file.schema_arrow.names:
                    known = ", ".join(file.schema_arrow.names)
                    raise UserError(f"{name} must have the column {column}, and has {known}")
            number = 0
            for batch in file.iter_batches(ROWS, columns=wanted):
                for at in range(len(batch)):
                    yield f"{name}:{number}", _row(batch, at)
                    number += 1
    except (OSError, pyarrow.ArrowException) as error:
        raise UserError(f"{name} cannot be read to its end: {str(error).partition(chr(10))[0]}") from None


def _row(batch, at):
    try:
        return {field: batch[field][at].as_py() for field in batch.schema.names}
    except UnicodeDecodeError:  # pyarrow does not look when it reads
        return "not UTF-8"


RECORDS = {"jsonl": _lines, "parquet": _rows}
