"""The documents of a source. Malformed records and filtered documents are yielded with their reason, and counted.

A source of which too many records are malformed is refused.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar, get_args

from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.manifest_types import Count, NumberedPart
from stages.lib.sources import filters, masks, source, spans
from stages.lib.sources.entries import Document, Filtered, Malformed, grouped
from stages.lib.sources.filters import FilterRecipe
from stages.lib.sources.kinds.registry import DOCUMENT_KINDS, kind_of
from stages.lib.sources.source import SourceRecipe
from stages.lib.sources.spans import Span
from stages.lib.sources.storage import Status

EXAMPLES, EXAMPLE_CHARACTERS = 3, 200  # per reason
CHECKED_EVERY = 10_000  # records after which reading stops if most of them are malformed

COUNTS: tuple[Count, ...] = get_args(Count)
"""Names of the counts in the records of parts and corpora."""


class BosEos(Protocol):
    """A tokenizer's ids of BOS and EOS."""

    @property
    def bos(self) -> int: ...  # noqa: D102

    @property
    def eos(self) -> int: ...  # noqa: D102


def is_empty(document: Document, tokenizer: BosEos | None = None) -> bool:
    """Return True if a document has only white space, or no ids besides BOS and EOS of its `tokenizer` at its ends."""
    if document.ids is None:
        assert document.text is not None
        return not document.text.strip()
    if tokenizer is None or len(document.ids) > 2:
        return len(document.ids) == 0
    bos, eos = tokenizer.bos, tokenizer.eos
    return document.ids.tolist() in ([], [bos], [eos], [bos, eos])


class FilterCounts:
    """Counts malformed records and filtered documents and their bytes by reason, and keeps examples; counts what is
    masked in the other documents, by kind, and all documents by their language if filters identify it. `log`: examples
    are logged too.

    `name`: the source. `limit`: the largest share of malformed records. `tokenizer`: tells which documents of ids are
    empty; None if it is not known.
    """

    def __init__(self, name: str, limit: float, tokenizer: BosEos | None = None, log: bool = True) -> None:
        self.name, self.limit, self.tokenizer, self.log = name, limit, tokenizer, log
        self.filtered: Counter[str] = Counter()
        self.malformed: Counter[str] = Counter()
        self.masked: Counter[str] = Counter()
        self.languages: Counter[str] = Counter()
        self.dropped_bytes: Counter[str] = Counter()
        self.lengths: Counter[int] = Counter()
        self.examples: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
        self.num_records = 0

    @property
    def num_malformed(self) -> int:
        """The number of malformed records."""
        return self.malformed.total()

    def keep(self, entry: Document | Malformed | Filtered) -> Document | None:
        """Count an entry; return it if it is a document that is not empty, else None.

        Raises UserError if most of the records up to here are malformed, and that is beyond the limit.
        """
        self.num_records += 1
        if self.num_records % CHECKED_EVERY == 0 and self.num_malformed > self.num_records / 2:
            self.check()  # such a source needs no reading to its end
        if not isinstance(entry, Malformed) and entry.language is not None:
            self.languages[entry.language] += 1
        if isinstance(entry, Document):
            if not is_empty(entry, self.tokenizer):
                self.masked.update(entry.masked or {})
                if entry.text is not None:
                    self.lengths[num_bytes(entry.text).bit_length()] += 1
                return entry
            entry = Filtered(entry.id, "empty", entry.text or "")
        word = "malformed" if isinstance(entry, Malformed) else "filtered"
        getattr(self, word)[entry.reason] += 1
        self.dropped_bytes[entry.reason] += num_bytes(entry.text or "")
        if len(self.examples[entry.reason]) < EXAMPLES:
            example: dict[str, Any] = {"id": entry.id, "text": (entry.text or "")[:EXAMPLE_CHARACTERS]}
            if isinstance(entry, Filtered) and entry.value is not None:
                example["value"] = entry.value if isinstance(entry.value, str) else float(f"{entry.value:.4g}")
            self.examples[entry.reason].append(example)
            if self.log:
                logger.info("%s %s: %s", word, entry.id, entry.reason)
        return None

    def check(self) -> None:
        """Raise UserError if too many records are malformed."""
        check_share(self.name, self.limit, self.num_malformed, self.num_records, self.malformed + self.filtered)

    def check_rest(self) -> None:
        """Raise UserError if the filters leave no document of all that were counted."""
        filtered = Counter({reason: count for reason, count in self.filtered.items() if reason.startswith("filters.")})
        if filtered and self.num_records == self.num_malformed + self.filtered.total():
            raise nothing_left(self.name, self.malformed + self.filtered)

    def record(self) -> dict[str, Any]:
        """Return the counts, with examples, for a manifest's record."""
        counts = dict(sorted((self.malformed + self.filtered).items()))
        examples = {reason: self.examples[reason] for reason in counts}
        numbers = {"records": self.num_records, "malformed": self.num_malformed}
        others = {"masked": self.masked, "languages": self.languages, "dropped_bytes": self.dropped_bytes}
        more = {key: dict(sorted((+counter).items())) for key, counter in others.items() if counter}
        lengths = {str(1 << bits): count for bits, count in sorted(self.lengths.items())}
        return numbers | {"dropped": counts, "dropped_examples": examples} | more | {"lengths": lengths}


def num_bytes(text: str) -> int:
    """Return the bytes of a text in UTF-8. Most texts are ASCII, and Python notes that when it makes them."""
    return len(text) if text.isascii() else len(text.encode())


def check_share(name: str, limit: float, num_malformed: int, num_records: int, dropped: Counter[str]) -> None:
    """Raise UserError if more than a share of the records of a source are malformed. `dropped`: {reason: number}."""
    if num_malformed > limit * num_records:
        counted = ", ".join(f"{count} {reason}" for reason, count in dropped.most_common())
        raise UserError(
            f"sources.{name}.max_malformed must be at least the share of malformed records, "
            f"{num_malformed} of {num_records} ({counted}), got {limit:g}"
        )


def nothing_left(name: str, dropped: Counter[str]) -> UserError:
    """Return the error for a source of which its filters leave no record. `dropped`: {reason: number}."""
    counted = ", ".join(f"{count:,} {reason}" for reason, count in dropped.most_common())
    return UserError(
        f"sources.{name}.filters leave nothing of {dropped.total():,} records ({counted}); "
        "python -m tools.inspect --filters shows what each rule removes"
    )


Entry = Document | Malformed | Filtered
AnyEntry = TypeVar("AnyEntry", bound=Entry)

FILTERED_AT_ONCE = 1 << 20  # characters of text that are filtered together
RECORD_BYTES = 100  # memory of a document besides its text


def read(
    recipe: SourceRecipe, chosen: Sequence[Span], every_name: Sequence[str], before: Mapping[str, Status] | None = None
) -> Iterator[Entry]:
    """Yield a Document, Malformed or Filtered for each record of the spans `chosen`.

    `every_name`: all files of the source; python-prose excludes what stands in several of them.
    `before`: `inputs.states` of the files; default: their states when reading begins.
    Raises UserError if the source holds prompt-completion data, or a file changes before its last record was read.
    """
    kind = kind_of(recipe)
    if not kind.has_documents:
        raise UserError(
            f"a source of a tokenizer or a corpus must be of the kind {', '.join(DOCUMENT_KINDS[:-1])} or "
            f"{DOCUMENT_KINDS[-1]}, got {recipe.kind}, which is for fine-tuning"
        )
    entries = kind.documents(recipe, chosen, every_name, before or {})
    found = _filtered(recipe.filters, entries) if recipe.filters.some else entries
    return _masked(recipe.mask, found) if recipe.mask else found


class Part:
    """A part of a listed source, whose documents several stages read and number alike.

    `listed`: the manifest of the list. `identity`: what the part's documents depend on, for manifests, `filter_code`
    among it.
    """

    def __init__(self, list_path: Path, part: int, parts: int) -> None:
        if not 0 <= part < parts:
            raise UserError(f"--part must be from 0 to {parts - 1} for {parts} parts, got {part}")
        self.listed, self.name, self.recipe = source.read_list(list_path)
        self._every_name = [file["name"] for file in self.listed.identity["files"]]
        self._chosen = source.spans_of_part(self.recipe, self.listed.identity["files"], part, parts)
        self._before = source.states_of(self.recipe, self.listed, self._chosen)
        self.filter_code = filters.code_of(self.recipe.filters)
        inputs = spans.whole(self._every_name) if kind_of(self.recipe).needs_every_file else self._chosen
        self.identity: NumberedPart = {
            "source": self.name,
            "source_recipe": self.listed.identity["recipe"],
            "part": part,
            "parts": parts,
            "inputs": source.described_inputs(self.recipe, self.listed, inputs),
            **self.filter_code,
        }

    @staticmethod
    def add_options(parser: argparse.ArgumentParser) -> None:
        """Add the options of a stage that reads a part."""
        parser.add_argument("--list", type=Path, required=True, help="the list of the source")
        parser.add_argument("--part", type=int, required=True, help="number of the part, from 0")
        parser.add_argument("--parts", type=int, required=True, help="number of parts of the source")

    def entries(self) -> Iterator[Entry]:
        """Yield what `read` yields for the part."""
        return read(self.recipe, self._chosen, self._every_name, self._before)

    def documents(self) -> Iterator[Document]:
        """Yield the documents; those that are malformed or filtered have no number, so they are left out."""
        return (entry for entry in self.entries() if isinstance(entry, Document))


def _filtered(recipe: FilterRecipe, entries: Iterable[Entry]) -> Iterator[Entry]:
    """Yield the entries, with Filtered in place of each document that a filter rejects; many are filtered together."""
    for batch in batched(entries, FILTERED_AT_ONCE):
        found = [entry for entry in batch if isinstance(entry, Document)]
        results = iter(filters.judged(recipe, [entry.text or "" for entry in found], [entry.id for entry in found]))
        for entry in batch:
            if not isinstance(entry, Document):
                yield entry
                continue
            reason, text, value, language = next(results)
            if reason is not None:
                yield Filtered(entry.id, reason, entry.text or "", value, language)
            elif text == entry.text and language is None:
                yield entry
            else:
                yield dataclasses.replace(entry, text=text, language=language)


def _masked(kinds: Sequence[str], entries: Iterable[Entry]) -> Iterator[Entry]:
    """Yield the entries with their text masked: that of filtered documents too, since manifests show examples."""
    for batch in batched(entries, FILTERED_AT_ONCE):
        results = iter(masks.masked(kinds, [entry.text for entry in batch if entry.text is not None]))
        for entry in batch:
            text, counts = (None, None) if entry.text is None else next(results)
            if not counts:
                yield entry
            elif isinstance(entry, Document):
                yield dataclasses.replace(entry, text=text, masked=counts)
            elif isinstance(entry, Filtered):
                yield dataclasses.replace(entry, text=text or "")


def batched(entries: Iterable[AnyEntry], size: int) -> Iterator[list[AnyEntry]]:
    """Yield lists of entries, in order, each of about `size` characters of text or bytes of ids (more if
    one document has more).
    """

    def size_of(entry: AnyEntry) -> int:
        ids = getattr(entry, "ids", None)
        return RECORD_BYTES + (len(entry.text or "") if ids is None else ids.nbytes)

    return grouped(entries, size_of, size)
