"""The interface of a kind of source: which files it has, how they are cut into spans, and how records are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stages.lib.chat.messages import Message
from stages.lib.sources import storage
from stages.lib.sources.entries import Document, Malformed, document_of_fields
from stages.lib.sources.storage import Status

if TYPE_CHECKING:
    import pyarrow

    from stages.lib.sources.source_fields import SourceFields
    from stages.lib.sources.spans import Span

DOCUMENT_FIELDS = ("max_malformed", "filters")
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

    is_prompt_completion = False
    """True for pairs to fine-tune on: `pairs` reads them."""

    is_chat = False
    """True for conversations to fine-tune on: `conversations` reads them."""

    is_preference = False
    """True for prompts with a chosen and a rejected completion: `preferences` reads them, `pairs` only the chosen."""

    is_readable = False
    """True if the first bytes of a file can be shown to a person."""

    has_json_lines = False
    """True if a file's lines are JSON objects with fields."""

    has_columns = False
    """True if a file has a schema: `schema` returns it."""

    @property
    def has_documents(self) -> bool:
        """True if `documents` reads the source: its text may be that of a corpus."""
        return not (self.is_prompt_completion or self.is_chat)

    def root(self) -> Path:
        """Return the directory to which the file names are relative."""
        return Path()

    def own_files(self) -> dict[str, Status]:
        """Return {file name: Status} of all files of a kind without paths."""
        raise NotImplementedError(self.name)

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
    ) -> Iterator[Document | Malformed]:
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
