"""The interface of a kind of source: which files it has, how they are cut into spans, and how records are read.

The recipe of a source, which knows the kinds, is in source.py; the fields that a kind reads are here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stages.lib.chat.messages import Message
from stages.lib.recipe import identity, operation
from stages.lib.sources import storage
from stages.lib.sources.entries import Document, Filtered, Malformed, field_of, split_of
from stages.lib.sources.filters import FilterRecipe
from stages.lib.sources.masks import MARKS
from stages.lib.sources.spans import Span
from stages.lib.sources.storage import Status

if TYPE_CHECKING:
    import numpy as np
    import pyarrow

DOCUMENT_FIELDS = ("max_malformed", "filters", "mask")
"""Fields of the recipe that every kind of documents reads."""

FIELDS_OF_TABLE = ("text_field", "token_ids_field", "id_field", "split_field", *DOCUMENT_FIELDS)
Text = str | list[Message]
"""A text, or messages that a chat template renders."""

Tools = list[dict[str, Any]] | None
"""The tools of a record, see `chat.messages.checked_tools`."""

ConversationRecord = tuple[str, str, list[Message], Tools]
"""(id, split key, messages, tools)"""

PreferenceRecord = tuple[str, str, Text, Text, Text, Tools]
"""(id, split key, prompt, chosen, rejected, tools): three texts, or three lists of messages."""

JSON_LINES_ENDINGS = (".jsonl", ".json", ".ndjson")
HASHED_IDS = 1 << 20  # ids that are converted to 8 bytes each at once


class SourceKind:
    """A kind of source of documents in files that the recipe's `paths` name. Subclasses override what differs."""

    name: str
    """The value of the recipe's `kind`."""

    fields: tuple[str, ...] = DOCUMENT_FIELDS
    """Fields of the recipe that this kind reads and some other kind does not."""

    endings: tuple[str, ...] = ()
    """Endings of the files that are taken from a directory, before one of compression; (): all files."""

    owns_endings = False
    """True if each file must have one of `endings`, and no file of another kind may."""

    needs_paths = True
    """False for a kind whose files are those of the Python installation."""

    needs_every_file = False
    """True if the documents of a file depend on all files of the source."""

    yields: tuple[str, ...] = ("documents",)
    """Contents of a source, each read by the method of its name: documents, pairs, conversations or preferences."""

    is_readable = False
    """True if the first bytes of a file can be shown to a person."""

    has_json_lines = False
    """True if a file's lines are JSON objects with fields."""

    has_columns = False
    """True if a file has a schema: `schema` returns it."""

    @property
    def has_documents(self) -> bool:
        """True if `documents` reads the source: its text may be that of a corpus."""
        return "documents" in self.yields

    def root(self) -> Path:
        """Return the directory to which the file names are relative."""
        return Path()

    def own_files(self) -> dict[str, Status]:
        """Return {file name: Status} of all files of a kind without paths."""
        raise NotImplementedError(self.name)

    def takes(self, path: str) -> bool:
        """Return False for a file beside the documents, such as one of their attributes, that paths may match too."""
        return True

    def can_be_cut(self, name: str) -> bool:
        """Return True if a file can be read from its middle."""
        return False

    def cut_positions(self, name: str, size: int) -> Sequence[int] | None:
        """Return positions of a file of `size` bytes at which a sample of it may begin; None: at any byte."""
        return [0]

    def extent(self, span: Span) -> tuple[int, int | None]:
        """Return the bytes [first, end) of a file that hold the records of a span; `end` is None for the file's end."""
        return 0, None

    def records(self, recipe: SourceFields, span: Span) -> Iterator[tuple[str, Any]]:
        """Yield (id, record) of the records of a span; a malformed record is its reason, a str.

        Raises UserError if the file is damaged. The ids of a whole file have the record's number; those of a cut file
        have the record's position, since its number is not known.
        """
        raise NotImplementedError(self.name)

    def document(self, recipe: SourceFields, identifier: str, record: Any) -> Document | Malformed:
        """Return the document of a record that `records` yields."""
        return document_of_fields(recipe, identifier, record)

    def documents(
        self, recipe: SourceFields, chosen: Sequence[Span], every_name: Sequence[str], before: Mapping[str, Status]
    ) -> Iterator[Document | Malformed | Filtered]:
        """Yield the documents of the spans `chosen`; arguments as of `documents.read`."""
        for span in chosen:
            begun = before.get(span.name) or storage.status(span.name)
            for identifier, record in self.records(recipe, span):
                if isinstance(record, str):
                    yield Malformed(identifier, record)
                else:
                    yield self.document(recipe, identifier, record)
            storage.check_unchanged({span.name: begun})

    def pairs(self, recipe: SourceFields, names: Sequence[str]) -> Iterator[tuple[str, str, str, str]]:
        """Yield (id, split key, prompt, completion) of each pair in the files `names`, all files of the source.

        Raises UserError naming file and line of a malformed record: a model must not be trained on half of the data.
        """
        raise NotImplementedError(self.name)

    def preferences(self, recipe: SourceFields, names: Sequence[str]) -> Iterator[PreferenceRecord]:
        """Yield each preference: three texts, or three lists of messages.

        Files and errors as of `pairs`.
        """
        raise NotImplementedError(self.name)

    def conversations(self, recipe: SourceFields, names: Sequence[str]) -> Iterator[ConversationRecord]:
        """Yield each conversation in the files `names`; raises UserError as `pairs`."""
        raise NotImplementedError(self.name)

    def schema(self, name: str) -> tuple[pyarrow.Schema, list[Any] | None]:
        """Return (Arrow schema, values of the first row or None without one) of a file with columns."""
        raise NotImplementedError(self.name)


@dataclass(frozen=True, kw_only=True)
class SourceFields:
    """The fields of a source of documents, or of conversations or prompt-completion pairs to fine-tune on."""

    kind: str = identity()
    """The name of the kind."""

    paths: list[str] = identity([])
    """Files, directories (with all files below them), globs (`**` matches any folders) or their URLs (s3://, hf:// and
    all others that fsspec reads), relative to the working directory; not for python-*. In the query of a URL of http,
    `${NAME}` is the environment variable NAME: a token or signature must be written so. Text and JSON lines files may
    be compressed: .gz, .zst, .bz2, .lz4. As in Spark and Arrow, names that begin with a dot or an underscore and empty
    files are left out of a directory; `list` counts what it leaves out."""

    text_field: str = identity("text")
    """The field of a JSON line, or the column of a table, that holds the text. `doc.text` is the field text of the
    mapping or struct doc; this holds for all keys that name a field."""

    token_ids_field: str | None = identity(None)
    """The column of a table that holds token ids of the corpus' tokenizer (pre-tokenized documents), in place of text.
    They may have a BOS and an EOS at their ends or not: the corpus decides. Padding behind EOS or in front of BOS is
    left out, and a row of several documents is malformed. The validation split is drawn by the ids: a
    text that another source holds as text may be validation data in one and training data in the other; a `split_field`
    of both prevents it."""

    id_field: str | None = identity(None)
    """The field or column that holds the id of a document in messages and examples. Default: file and number."""

    messages_field: str = identity("messages")
    """The field or column that holds the messages of a conversation: a list of mappings with `role` (system, user,
    assistant or tool) and `content`, in the order of the turns. Further keys are for the chat template."""

    prompt_field: str = identity("prompt")
    """The field or column that holds the prompt. Nothing is put between prompt and completion: a space between
    them must be in the data."""

    completion_field: str = identity("completion")
    """The field or column that holds the completion, which a model learns to write after the prompt."""

    chosen_field: str = identity("chosen")
    """The field or column that holds the completion that is preferred: text, or messages. Messages with which both
    completions begin, and a list of messages in `prompt_field`, are the prompt."""

    rejected_field: str = identity("rejected")
    """The field or column that holds the other completion."""

    split_field: str | None = identity(None)
    """The field of a JSON line, or the column, whose value is the split key: equal values are all training or all
    validation data. Default: the text, the prompt, or the messages before the assistant's first answer. Pages have the
    fields url and host (and date in warc, file in html)."""

    main_content: bool = identity(True)
    """Take the main text of a page, without menus, side bars and footers; false: all of its text."""

    validation: float = identity(0.01, minimum=0, maximum=0.9)
    """The share of split keys in the validation split. Split keys are file names for text (segments if a file is cut),
    modules for python-*. Every source of a corpus or of fine-tuning needs a validation split; 0 is for a source that
    only a tokenizer is trained on."""

    license: str | None = operation(None)
    """The license of the text, an SPDX identifier where there is one (CC-BY-4.0). Model cards and the manifest of a
    corpus show it."""

    max_malformed: float = operation(0.05, minimum=0, maximum=1)
    """The largest share of a source's records that may be malformed (no JSON, no UTF-8, no text): up to it they are
    skipped and counted, beyond it the source is refused."""

    filters: FilterRecipe = identity(FilterRecipe())
    """The conditions that a document must meet."""

    mask: list[str] = identity([], choices=tuple(MARKS), unique=True)
    """Personal data and secrets that are replaced in the text of documents: by `<email>`, `<ip_address>` (global ones
    alone), `<secret_key>` (private keys, and keys and tokens that can be told by their form) and `<phone>` (numbers
    that begin with + and a country code). Manifests count them by kind, without examples. Filters see the text before
    that; the search for duplicates, tokenizers, shards and all else see what stays."""


def document_of_text(
    recipe: SourceFields, identifier: str, text: str | bytes, key: str | None = None
) -> Document | Malformed:
    """Return the Document of a text. `key`: the split key; default: the id."""
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8-sig")
        except UnicodeDecodeError:
            return Malformed(identifier, "not UTF-8")
    return Document(identifier, text, split_of(key or identifier, recipe.validation))


def document_of_fields(recipe: SourceFields, identifier: str, record: Mapping[str, Any]) -> Document | Malformed:
    """Return the Document of a record with fields; Malformed if a field that the recipe names is missing or wrong."""
    if recipe.id_field is not None:
        value = field_of(record, recipe.id_field, None)
        if not isinstance(value, (str, int)):
            return Malformed(identifier, f"no text or whole number in {recipe.id_field}")
        identifier = str(value)
    text: Any = None
    ids: Any = None
    if recipe.token_ids_field is None:
        text = field_of(record, recipe.text_field, None)
        if not isinstance(text, str):
            return Malformed(identifier, f"no text in {recipe.text_field}")
    else:
        ids = record[recipe.token_ids_field]
        if not hasattr(ids, "dtype"):
            return Malformed(identifier, f"no token ids in {recipe.token_ids_field}")
    if recipe.split_field is None:
        key = hashlib.sha256(text.encode()).hexdigest() if ids is None else _digest_of_ids(ids)
    elif isinstance(value := field_of(record, recipe.split_field, None), (str, int)):
        key = str(value)
    else:  # null as well: it would put all these records into one split
        return Malformed(identifier, f"no text or whole number in {recipe.split_field}")
    return Document(identifier, text, split_of(key, recipe.validation), ids)


def _digest_of_ids(ids: np.ndarray) -> str:
    hashing = hashlib.sha256()
    for begin in range(0, len(ids), HASHED_IDS):
        hashing.update(ids[begin : begin + HASHED_IDS].astype("<i8"))  # type: ignore[arg-type]
    return hashing.hexdigest()
