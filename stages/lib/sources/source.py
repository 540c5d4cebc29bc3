"""Sources: how they are described, and which files they have. What stands in these, see documents.py and pairs.py."""

import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path

from stages.lib import manifest
from stages.lib.errors import UserError
from stages.lib.recipe import default_of, identity
from stages.lib.recipe import load as load_recipe
from stages.lib.sources import compressed, python_source, storage
from stages.lib.sources.filters import FilterRecipe

TEXTS = ("text", "jsonl", "parquet", "arrow", "python-code", "python-prose")
PROMPT_COMPLETION_KINDS = ("prompt_completion", "python-docstrings")
TABLES = ("parquet", "arrow")
ENDINGS = {  # of the files that are taken of a directory
    "jsonl": (".jsonl", ".json", ".ndjson"),
    "prompt_completion": (".jsonl", ".json", ".ndjson"),
    "parquet": (".parquet",),
    "arrow": (".arrow", ".feather", ".ipc"),
}
UNREADABLE = (".xz", ".zip", ".tar", ".tgz", ".tar.gz", ".7z")
READ_BY = {  # fields that not every kind reads
    "text_field": ("jsonl", *TABLES),
    "token_ids_field": TABLES,
    "id_field": ("jsonl", *TABLES),
    "prompt_field": ("prompt_completion",),
    "completion_field": ("prompt_completion",),
    "split_field": ("jsonl", "prompt_completion", *TABLES),
    "max_malformed": TEXTS,
    "filters": TEXTS,
}


@dataclass(frozen=True, kw_only=True)
class SourceRecipe:
    """Where documents, or the pairs that a model is fine-tuned on, come from."""

    kind: str = identity(choices=TEXTS + PROMPT_COMPLETION_KINDS)
    """text: a file is a document; one of more than 16 MiB is cut at line ends into documents of about that size. jsonl:
    a line is one. parquet, arrow: a row is one; a page of parquet, and a record batch of Arrow, is held in memory as a
    whole. python-code and python-prose: the modules of the Python installation, and their docstrings. To fine-tune on:
    prompt_completion: a JSON line has a prompt and a completion. python-docstrings: headers of functions of the Python
    installation, and the first lines of their docstrings."""

    paths: list[str] = identity([])
    """Files, directories (with all below them), globs (`**` goes through folders) or addresses of them (s3://, hf://
    and what else fsspec knows), relative to the working directory; not for python-*. Files of text and of JSON lines
    may be packed: .gz, .zst, .bz2, .lz4."""

    text_field: str = identity("text")
    """The field of a JSON line, or the column of a table, that holds the text."""

    token_ids_field: str | None = identity(None)
    """The column of a table that holds token ids of the corpus' tokenizer, in place of text. A BOS before them and an
    EOS behind them may be there or not: the corpus decides. What is held out is drawn by the ids: of a text that
    another source holds as text, one may be held out and the other trained on; a `split_field` of both prevents it."""

    id_field: str | None = identity(None)
    """The field or column whose value names a document in what is said of it. Default: file and number."""

    prompt_field: str = identity("prompt")
    """The field of a JSON line that holds the prompt of a pair. A space before the completion is written in the data:
    nothing is put between the two."""

    completion_field: str = identity("completion")
    """The field of a JSON line that holds the completion of a pair: what a model learns to say after the prompt."""

    split_field: str | None = identity(None)
    """The field of a JSON line, or the column, whose value decides between training and validation. Default: the text
    or the prompt."""

    validation: float = identity(0.01, minimum=0, maximum=0.9)
    """The share of split keys that is held out of training: of file names for text (of pieces where a file is cut), of
    modules for python-*. Every source of a corpus or of fine-tuning must hold out something; 0 is for one that only a
    tokenizer learns from."""

    license: str | None = identity(None)
    """The license of the text, which goes with it into the manifest of a corpus."""

    max_malformed: float = identity(0.05, minimum=0, maximum=1)
    """The largest share of a part's records that may be unreadable (no JSON, no UTF-8, no text): up to it they are left
    out and counted, beyond it the source is refused."""

    filters: FilterRecipe = identity(FilterRecipe())
    """What a document must be like."""

    def check(self, where):
        """Raise UserError where the paths do not fit the kind."""
        if self.kind.startswith("python-") == bool(self.paths):
            expected = "be left out" if self.paths else "name at least one file or glob"
            raise UserError(f"{where}.paths must {expected} for the kind {self.kind}, got {self.paths}")
        for field in dataclasses.fields(self):
            written = getattr(self, field.name) != default_of(field)
            if written and self.kind not in READ_BY.get(field.name, (self.kind,)):
                raise UserError(f"{where}.{field.name} must be left out for the kind {self.kind}")
        if self.token_ids_field is not None and self.text_field != "text":
            raise UserError(f"{where}.text_field must be left out beside token_ids_field, got {self.text_field}")
        if self.token_ids_field is not None and self.filters.some:
            raise UserError(f"{where}.filters must be left out beside token_ids_field: they look at text")


def read_list(path):
    """(Manifest, name, SourceRecipe) of a source's list. Raises UserError where it is none."""
    listed = manifest.read(path)
    if not {"source", "recipe", "files"} <= listed.identity.keys() or "etags" not in listed.record:
        raise UserError(f"{path} must be the list of a source, as stages.list writes it, and is none")
    name = listed.identity["source"]
    return listed, name, load_recipe(SourceRecipe, listed.identity["recipe"], f"sources.{name}")


def root_of(recipe):
    """The directory against which the file names of a source are read."""
    return python_source.root() if recipe.kind.startswith("python-") else Path()


def list_files(name, recipe):
    """{file name: Status} of a source's files, sorted. Raises UserError when there is none."""
    if recipe.kind.startswith("python-"):
        return {file: storage.status(python_source.root() / file) for file in python_source.modules()}
    found = {}
    for pattern in recipe.paths:
        matched = storage.find(pattern)
        if storage.is_address(pattern) or os.path.isdir(pattern):
            matched = {file: status for file, status in matched.items() if _is_of_kind(recipe, file)}
        if not matched:
            raise UserError(f"sources.{name}.paths must match at least one file, and {pattern} matches none")
        found |= matched
    places = {}
    for path in sorted(found):
        first = places.setdefault(found[path].place or path, path)
        if first != path:
            raise UserError(f"sources.{name}.paths must lead to each file once, and {first} and {path} are one file")
        if not path.isprintable():  # no UTF-8, or a line end that would break what is said of it
            raise UserError(f"sources.{name}.paths must match files whose names are printable text, got {path!a}")
        if path.endswith(UNREADABLE) or (recipe.kind in TABLES) != path.endswith(_table_endings(recipe)):
            raise UserError(f"sources.{name}.paths must match files of the kind {recipe.kind}, got {path}")
    return dict(sorted(found.items()))


def _table_endings(recipe):
    """The endings that files of a table must have, and those that other files must not have."""
    return ENDINGS[recipe.kind] if recipe.kind in TABLES else sum((ENDINGS[kind] for kind in TABLES), ())


def _is_of_kind(recipe, path):
    """Whether a file of a directory is one of the source's: READMEs and the like are not."""
    if recipe.kind not in ENDINGS:
        return not path.endswith(UNREADABLE + _table_endings(recipe))
    return (os.path.splitext(path)[0] if compressed.is_packed(path) else path).endswith(ENDINGS[recipe.kind])
