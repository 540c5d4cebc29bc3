"""A preview of a source before it is tokenized: files, fields, documents, lengths, malformed records, filters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from stages.lib.errors import UserError
from stages.lib.manifest_types import ListedFile
from stages.lib.render.numbers import several
from stages.lib.sources import documents, duplicates, examples, reading, source, spans, storage
from stages.lib.sources.documents import Entry, FilterCounts
from stages.lib.sources.entries import VALIDATION, Document
from stages.lib.sources.kinds.registry import kind_of
from stages.lib.sources.source import SourceRecipe
from stages.lib.space import amount
from tools.inspect import fields, sampling, terminal
from tools.inspect.sampling import Place
from tools.inspect.terminal import share

if TYPE_CHECKING:
    from stages.lib.tokenizer.tokenizer import Tokenizer


BATCH = 1 << 20  # characters of text that are encoded at once

AnyDocument = TypeVar("AnyDocument", bound=Document)


class Measures:
    """Counts documents that are kept. `what`: "document" or "pair"; `tokenizer`: None counts tokens only of ids."""

    def __init__(self, what: str, tokenizer: Tokenizer | None) -> None:
        self.what, self.tokenizer = what, tokenizer
        self.bytes: list[int] = []
        self.tokens: list[int] = []
        self.num_documents = self.num_validation = self.num_repeated = 0
        self._seen: set[bytes] = set()

    def add(self, batch: Sequence[AnyDocument]) -> Sequence[AnyDocument]:
        """Count some documents; return them, those of token ids with their text if the tokenizer is known.

        Raises UserError if an id is not in the tokenizer's vocabulary.
        """
        from stages.lib.tokens import bos_eos, pretokenized

        tokenizer = self.tokenizer
        if tokenizer is not None:
            batch = [pretokenized.with_text(document, tokenizer) for document in batch]  # type: ignore[misc]
            encoded = bos_eos.ids_of(batch, tokenizer.encode, np.int32)
            self.tokens += map(len, encoded)
        else:
            self.tokens += [len(document.ids) for document in batch if document.ids is not None]
        for document in batch:
            self.num_documents += 1
            self.num_validation += document.split == VALIDATION
            if document.text is not None:
                self.bytes.append(len(document.text.encode()))
            key = duplicates.hash_of(document) if document.text is None else duplicates.of_text(document.text)
            self.num_repeated += key in self._seen
            self._seen.add(key)
        return batch

    def print(self, validation: float) -> None:
        """Print the measures. `validation`: the recipe's share of split keys."""
        print(
            f"kept: {several(self.num_documents, self.what)}, {self.num_validation:,} of them in the validation split "
            f"({share(self.num_validation, self.num_documents)}; the recipe's share is {validation:g})"
        )
        repeated = share(self.num_repeated, self.num_documents)
        print(f"repeated: {self.num_repeated:,} ({repeated}), the same as another {self.what} of the sample")
        for lengths, unit in ((self.bytes, "bytes"), (self.tokens, "tokens")):
            if lengths:
                print()
                for line in terminal.histogram(lengths, f"{unit} per {self.what}"):
                    print(line)
        if sum(self.tokens) and self.bytes:
            total_bytes, total_tokens = sum(self.bytes), sum(self.tokens)
            print(
                f"{total_bytes / total_tokens:.3f} bytes per token, {total_tokens / total_bytes:.4f} tokens per byte, "
                f"without BOS and EOS"
            )

    def print_estimate(self, sampled: int, total: int) -> None:
        """Print the size of the whole source, estimated from `sampled` of its `total` bytes in files."""
        if sampled == total:
            return
        text, tokens = (sum(lengths) * total / sampled for lengths in (self.bytes, self.tokens))
        sizes = [f"{amount(text)} of text"] if self.bytes else []
        sizes += [f"{int(float(f'{tokens:.3g}')):,} tokens"] if self.tokens else []
        if sizes:
            print(f"estimate for the whole source: {' and '.join(sizes)}")


Files = Sequence[ListedFile]

PARTS = (2, 8, 32)  # numbers of parts whose sizes are printed
PARTS_WORK = 1_000_000  # files times parts, at most, for that
HEAD = 200  # bytes of a file with malformed records that are printed
NUM_NAMED_FILES = 3


@dataclass(frozen=True)
class PairDocument(Document):
    """A pair as one text, of which the first `prompt` characters are its prompt."""

    prompt: int = 0


def show(
    name: str,
    recipe: SourceRecipe,
    files: Files,
    tokenizer: Tokenizer | None,
    count: int,
    at_most: int,
    listed: Path | None,
    left_out: Counter[str],
) -> None:
    """Print the preview of a source by its name, recipe and files. `left_out`: counts of `source.list_files`.

    `count`: documents to show. `at_most`: bytes to read, about. `listed`: the list with the sizes of the files.
    Raises UserError if a file cannot be read, or ids are not in the tokenizer's vocabulary.
    """
    print_files(name, recipe, files)
    if left_out:
        print(f"left out of its directories: {source.counted(left_out)}")
    places = sampling.places(recipe, files, at_most)
    sizes, root = {file["name"]: file["bytes"] for file in files}, kind_of(recipe).root()
    for path in {span.name: None for place in places if listed is not None for span in place.spans}:
        size = storage.status(path if storage.is_remote(path) else root / path).bytes
        if size != sizes[path]:
            raise UserError(f"{path} must have {sizes[path]} bytes by {listed}, got {size}; run -R list")
    fields.print_fields(recipe, places, files)
    counts = FilterCounts(name, 1, tokenizer, log=False)
    padding = None
    if tokenizer is not None:
        from stages.lib.tokens.pretokenized import Padding

        padding = Padding(tokenizer)
    measures = Measures(_word_of(recipe), tokenizer)
    readings: list[Reading] = []
    shown: list[Document] = []
    for number, place in enumerate(places, 1):
        readings.append(Reading(recipe, place, files, at_most // len(places)))
        entries = readings[-1] if padding is None else padding.remove(readings[-1])
        for batch in documents.batched(filter(None, map(counts.keep, entries)), BATCH):
            shown += measures.add(batch)[: max(0, count * number // len(places) - len(shown))]
    print_sample(readings, counts.num_records)
    print_filtered(recipe, counts, places[0].spans[0].name)
    if padding is not None and padding.documents:
        print(f"padding: {padding.ids:,} ids in {several(padding.documents, 'row')} are left out")
    if measures.num_documents:
        measures.print(recipe.validation)
    elif counts.num_records:
        print("kept: none")
    is_complete = readings[0].place.where == "all" and readings[0].ended
    if measures.num_documents and is_complete and not measures.num_validation:
        print("the validation split is empty, and a corpus needs one: raise validation")
    if all(reading.ended for reading in readings):
        measures.print_estimate(sum(place.bytes for place in places), sum(file["bytes"] for file in files))
    for document in shown:
        print_document(document)


def print_files(name: str, recipe: SourceRecipe, files: Files) -> None:
    """Print how many files there are, how large, and how `tokenize.parts` would cut them."""
    total = sum(file["bytes"] for file in files)
    print(f"source {name}: {recipe.kind}, {several(len(files), 'file')}, {amount(total)}")
    for file in files[:NUM_NAMED_FILES]:
        print(f"  {terminal.visible(file['name'])}: {amount(file['bytes'])}")
    if len(files) > NUM_NAMED_FILES:
        print(f"  ... {len(files) - NUM_NAMED_FILES:,} more")
    if kind_of(recipe).has_documents:
        print(f"parts: {'; '.join(_parts(recipe, files, total))}")


def _parts(recipe: SourceRecipe, files: Files, total: int) -> Iterator[str]:
    """Yield phrases on the sizes of parts."""
    can_be_cut = kind_of(recipe).can_be_cut
    whole = [file["bytes"] for file in files if file["bytes"] <= spans.WHOLE_BYTES or not can_be_cut(file["name"])]
    if len(files) == 1 and whole:
        yield "the only file would stay whole, in one part"
        return
    if len(whole) < len(files):
        yield f"{several(len(files) - len(whole), 'file')} of more than 16 MiB would be cut"
    largest = max(whole, default=0)
    if largest > spans.WHOLE_BYTES:
        yield f"a file of {amount(largest)} stays whole, so more than {-(-total // largest)} parts are not faster"
    sizes = {file["name"]: file["bytes"] for file in files}
    for parts in PARTS:
        if parts * len(files) <= PARTS_WORK:
            cuts = [source.spans_of_part(recipe, files, part, parts) for part in range(parts)]
            held = [sum((span.end or sizes[span.name]) - span.first for span in cut) for cut in cuts]
            if 0 in held:
                yield f"{held.count(0)} of {parts} would be empty"
                return
            least, most = amount(min(held)), amount(max(held))
            yield f"each of {parts} would have {least}" + f" to {most}" * (least != most)


class Reading:
    """The entries of a place (a pair is a PairDocument), up to a limit of bytes.

    `held`: bytes of text or ids that were read; `ended`: True if that is all of the place.
    """

    def __init__(self, recipe: SourceRecipe, place: Place, files: Files, at_most: int) -> None:
        # a place ends with a file or row group that exceeds the limit: read it too if it is not much
        self.place, self.at_most = place, max(at_most, place.bytes if place.bytes <= 2 * at_most else 0)
        self.held, self.ended = 0, False
        self._entries = self._read(recipe, files)

    def _read(self, recipe: SourceRecipe, files: Files) -> Iterator[Entry]:
        names, word = [span.name for span in self.place.spans], _word_of(recipe)
        if word == "pair":
            for pair in examples.pairs(recipe, names):
                yield PairDocument(pair.id, pair.prompt + pair.completion, pair.split, prompt=len(pair.prompt))
        elif word == "conversation":
            for record in examples.chats(recipe, names):
                turns = (f"{message['role']}: {message.get('content', '')}" for message in record.messages)
                yield Document(record.id, "\n".join(turns), record.split)
        else:
            yield from documents.read(recipe, self.place.spans, [file["name"] for file in files])

    def __iter__(self) -> Iterator[Entry]:
        """Yield the entries."""
        costs = 0
        for entry in self._entries:
            yield entry
            self.held += num_bytes(entry)
            costs += max(num_bytes(entry), documents.RECORD_BYTES)
            if costs >= self.at_most:
                break
        self.ended = next(self._entries, None) is None


def _word_of(recipe: SourceRecipe) -> str:
    """Return the word for a record of a source."""
    kind = kind_of(recipe)
    return "pair" if "pairs" in kind.yields else kind.yields[0].removesuffix("s")


def num_bytes(entry: Entry) -> int:
    """Return the bytes of an entry's text in UTF-8, or of its ids."""
    if isinstance(entry, Document) and entry.ids is not None:
        return entry.ids.nbytes
    return len((entry.text or "").encode())


def print_sample(readings: Sequence[Reading], count: int) -> None:
    """Print which places of the source were sampled, and how many bytes and records of them."""
    held = amount(sum(reading.held for reading in readings))
    if readings[0].place.where == "all":
        where = "all of the source" if readings[0].ended else "its beginning; --sample-mb reads more"
    else:
        names = ", ".join(reading.place.where for reading in readings)
        where = f"{' and '.join(names.rsplit(', ', 1))} of the source; --sample-mb reads more"
    print(f"\nsample: {several(count, 'record')}, {held}: {where}")


def print_filtered(recipe: SourceRecipe, counts: FilterCounts, name: str) -> None:
    """Print malformed records and filtered documents by reason, with examples.

    If the source would be refused, also print that, and the first bytes of its file `name`.
    """
    reasons = [("malformed", *item) for item in counts.malformed.items()]
    reasons += [("filtered", *item) for item in counts.filtered.items()]
    for word, reason, count in sorted(reasons, key=lambda item: -item[2]):
        print(f"{word}: {count:,} ({share(count, counts.num_records)}) {reason}")
        for example in counts.examples[reason]:
            print(f"  {terminal.visible(example['id'])}: {terminal.shortened(example['text'])}".rstrip(": "))
    if not reasons:
        print("malformed or filtered: none")
    if counts.masked:
        print(f"masked: {', '.join(f'{number:,} {kind}' for kind, number in counts.masked.most_common())}")
    if counts.num_malformed > recipe.max_malformed * counts.num_records:
        print(
            f"the source would be refused: {share(counts.num_malformed, counts.num_records)} of the records are "
            f"malformed, and max_malformed is {recipe.max_malformed:g}"
        )
        if kind_of(recipe).is_readable:
            with reading.open_binary(name) as file:
                head = file.read(HEAD).decode(errors="replace")
            print(f"{terminal.visible(name)} begins with: {terminal.shortened(head, HEAD)}")


def print_document(document: Document) -> None:
    """Print a document; > marks the prompt of a pair. Ids without a tokenizer are printed as numbers."""
    validation = ", validation" if document.split == VALIDATION else ""
    if document.text is None:
        assert document.ids is not None
        print(f"\n{terminal.visible(document.id)}: {several(len(document.ids), 'id')}{validation}")
        print(f"  | {' '.join(map(str, document.ids[:20].tolist()))}{' ...' * (len(document.ids) > 20)}")
        return
    print(f"\n{terminal.visible(document.id)}: {amount(len(document.text.encode()))}{validation}")
    prompt = document.prompt if isinstance(document, PairDocument) else 0
    if prompt:
        print(*terminal.lines_of(document.text[:prompt], ">"), sep="\n")
    print(*terminal.lines_of(document.text[prompt:]), sep="\n")
