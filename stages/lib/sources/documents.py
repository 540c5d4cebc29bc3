"""The documents of a source of text, of whichever kind; what is none is said with its reason."""

import hashlib
from dataclasses import dataclass

from stages.lib.errors import UserError
from stages.lib.sources import filters, inputs, python_source, records, storage
from stages.lib.sources.source import PROMPT_COMPLETION_KINDS, TEXTS
from stages.lib.sources.split import split_of

FILTER_BYTES = 1 << 20  # of text, looked at together
IDS = 1 << 20  # that are brought to 8 bytes each at once
RECORD_BYTES = 100  # what a document costs besides its text


@dataclass(frozen=True)
class Document:
    """A document: an id that is unique in its source, its text, and the side of the split that it is on.

    `ids`: its token ids where the source holds these, an integer array; `text` is then None.
    """

    id: str
    text: str | None
    split: str
    ids: object = None


@dataclass(frozen=True)
class Dropped:
    """A document that is left out, and why; `text` where it could be read."""

    id: str
    reason: str
    text: str | None = None


def read(recipe, chosen, every_name, before=None):
    """Yield a Document or a Dropped for each document of the spans `chosen`.

    `every_name`: all files of the source; python-prose needs them to leave out what stands in several modules.
    `before`: the `states` of the files, which else are those when reading begins.
    Raises UserError where the source holds pairs, or a file changes before its last document was read.
    """
    found = _readable(recipe, chosen, every_name, before or {})
    return _filtered(recipe.filters, found) if recipe.filters.some else found


def _filtered(recipe, found):
    """The same, with those documents dropped that the filters leave out; many are looked at together."""
    for batch in batched(found, FILTER_BYTES):
        read = [entry for entry in batch if isinstance(entry, Document)]
        broken = iter(filters.faults(recipe, [document.text for document in read]))
        for entry in batch:
            fault = next(broken) if isinstance(entry, Document) else None
            yield entry if fault is None else Dropped(entry.id, fault, entry.text)


def batched(found, size):
    """Lists of documents, in order: each of about `size` characters of text or bytes of ids, or more where one document
    has more.
    """
    batch, held = [], 0
    for entry in found:
        batch.append(entry)
        ids = getattr(entry, "ids", None)
        held += RECORD_BYTES + (len(entry.text or "") if ids is None else ids.nbytes)
        if held >= size:
            yield batch
            batch, held = [], 0
    if batch:
        yield batch


def _readable(recipe, chosen, every_name, before):
    if recipe.kind in PROMPT_COMPLETION_KINDS:
        raise UserError(
            f"a source of a tokenizer or a corpus must be of the kind {', '.join(TEXTS[:-1])} or {TEXTS[-1]}, got "
            f"{recipe.kind}, which is for fine-tuning"
        )
    if recipe.kind.startswith("python-"):
        names = [span.name for span in chosen]
        prose = recipe.kind == "python-prose"
        found = python_source.prose(names, every_name) if prose else python_source.code(names)
        for identifier, key, text in found:
            yield _document_of_text(recipe, identifier, text, key)
        return
    make = _document_of_text if recipe.kind == "text" else _document
    for span in chosen:
        begun = before.get(span.name) or storage.status(span.name)
        for identifier, record in records.READERS[recipe.kind](recipe, span):
            yield Dropped(identifier, record) if isinstance(record, str) else make(recipe, identifier, record)
        inputs.check_unchanged({span.name: begun})


def _document_of_text(recipe, identifier, text, key=None):
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8-sig")
        except UnicodeDecodeError:
            return Dropped(identifier, "not UTF-8")
    return Document(identifier, text, split_of(key or identifier, recipe.validation))


def _document(recipe, identifier, record):
    """The Document of a record, a mapping; a Dropped where it is none."""
    if recipe.id_field is not None:
        if not isinstance(record.get(recipe.id_field), (str, int)):
            return Dropped(identifier, f"no text or whole number in {recipe.id_field}")
        identifier = str(record[recipe.id_field])
    text = ids = None
    if recipe.token_ids_field is None:
        text = record.get(recipe.text_field)
        if not isinstance(text, str):
            return Dropped(identifier, f"no text in {recipe.text_field}")
    else:
        ids = record[recipe.token_ids_field]
        if not hasattr(ids, "dtype"):
            return Dropped(identifier, f"no token ids in {recipe.token_ids_field}")
    if recipe.split_field is None:
        key = hashlib.sha256(text.encode()).hexdigest() if ids is None else _digest_of(ids)
    elif isinstance(record.get(recipe.split_field), (str, int)):
        key = str(record[recipe.split_field])
    else:  # null as well: it would bring all such records to one side
        return Dropped(identifier, f"no text or whole number in {recipe.split_field}")
    return Document(identifier, text, split_of(key, recipe.validation), ids)


def _digest_of(ids):
    hashing = hashlib.sha256()
    for begin in range(0, len(ids), IDS):
        hashing.update(ids[begin : begin + IDS].astype("<i8"))
    return hashing.hexdigest()
