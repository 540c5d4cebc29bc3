"""Documents by their token ids: text of pre-tokenized ones, checked by the tokenizer, and that of training shards."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from stages.lib import manifest
from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.manifest import PartManifest
from stages.lib.sources.documents import Document, Entry
from stages.lib.sources.entries import TRAIN, Malformed
from stages.lib.tokenizer.fast import CHECK_CHARACTERS, CHECK_EVERY, CHECK_FIRST
from stages.lib.tokenizer.tokenizer import Tokenizer

SEGMENT_IDS = 1 << 18
"""Ids that are decoded at once."""


def with_text(document: Document, tokenizer: Tokenizer) -> Document:
    """Return a document; a pre-tokenized one gets its text, and loses BOS and EOS at its ends.

    Raises UserError if an id is not one of the tokenizer's.
    """
    if document.ids is None:
        return document
    ids: Any = document.ids
    if len(ids) and not 0 <= ids.min() <= ids.max() < tokenizer.vocab_size:
        wrong = ids[(ids < 0) | (ids >= tokenizer.vocab_size)]
        raise UserError(
            f"{document.id} must hold ids of the tokenizer, from 0 to {tokenizer.vocab_size - 1}, got {wrong[0]}"
        )
    begin = 1 if len(ids) and ids[0] == tokenizer.bos else 0
    end = len(ids) - 1 if len(ids) > begin and ids[-1] == tokenizer.eos else len(ids)
    ids = ids[begin:end].astype(np.int32, copy=False)
    return dataclasses.replace(document, text=text_of(ids, tokenizer.decode), ids=ids)


class Padding:
    """Removes the padding of pre-tokenized documents, and counts it.

    Padding is a run of one id behind the first EOS, or in front of the first BOS, to the row's end. `documents`,
    `ids`: numbers of the documents that had some, and of its ids.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.documents = self.ids = 0

    def remove(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """Yield the entries without padding. A row with further text behind an EOS is Malformed: where its documents
        begin is not known.
        """
        for entry in entries:
            yield entry if not isinstance(entry, Document) or entry.ids is None else self._without(entry)

    def _without(self, document: Document) -> Entry:
        ids, bos, eos = document.ids, self.tokenizer.bos, self.tokenizer.eos
        assert ids is not None
        begin = 0
        if bos != eos and len(starts := np.flatnonzero(ids == bos)):
            begin = int(starts[0])
            if len(np.unique(ids[:begin])) > 1:
                return Malformed(document.id, "BOS within the ids of a row, which must be one document")
        if bos == eos:  # a run of it in front: the last one may be BOS
            others = np.flatnonzero(ids != bos)
            begin = max(0, int(others[0]) - 1) if len(others) else max(0, len(ids) - 2)
        end, first = len(ids), begin + (bos == eos and begin < len(ids) and ids[begin] == bos)
        if len(ends := np.flatnonzero(ids[first:] == eos)):
            end = first + int(ends[0]) + 1
            if len(np.unique(ids[end:])) > 1:
                return Malformed(document.id, "EOS within the ids of a row, which must be one document")
        if (begin, end) == (0, len(ids)):
            return document
        self.documents += 1
        self.ids += len(ids) - (end - begin)
        return dataclasses.replace(document, ids=ids[begin:end])

    def warn(self, source: str) -> None:
        """Log a warning if there was any."""
        if self.documents:
            logger.warning("source %s: %s ids of padding in %s rows are left out", source, self.ids, self.documents)

    def record(self) -> dict[str, Any]:
        """Return the entry of a manifest's record; empty without padding."""
        return {"padding": {"documents": self.documents, "ids": self.ids}} if self.documents else {}


def text_of(ids: np.ndarray, decode: Callable[[list[int]], str]) -> str:
    """Decode ids, a long array in segments: each id is an object of 50 bytes and more while it is decoded."""
    texts, begin = [], 0
    while begin < len(ids):
        end = next((at for at in range(begin + SEGMENT_IDS, len(ids)) if _is_between(ids, at, decode)), len(ids))
        # after the preceding id: some decoders drop a space at the beginning of a text
        before = ids[max(0, begin - 1) : begin].tolist()
        texts.append(decode(before + ids[begin:end].tolist())[len(decode(before)) :])
        begin = end
    return "".join(texts)


def _is_between(ids: np.ndarray, at: int, decode: Callable[[list[int]], str]) -> bool:
    """Return whether the ids on both sides of a place are whole characters, not bytes of one character."""
    before, after, both = (decode(some.tolist()) for some in (ids[at - 1 : at], ids[at : at + 1], ids[at - 1 : at + 1]))
    return bool(before and after and "\ufffd" not in both and both.startswith(before))


class PretokenizedCheck:
    """Compares the ids of pre-tokenized documents with those of a Tokenizer, in a sample of a source's documents.

    They need not be equal. But if most differ, they may be another tokenizer's, and no other check finds that.
    """

    def __init__(self, source: str, tokenizer: Tokenizer) -> None:
        self.source, self.tokenizer = source, tokenizer
        self.documents = self.compared = self.same = 0

    def look(self, document: Document) -> None:
        """Compare a document of `with_text` if it is pre-tokenized, in the sample, and not too long."""
        if document.ids is None:
            return
        assert document.text is not None
        in_sample = self.documents < CHECK_FIRST or self.documents % CHECK_EVERY == 0
        if in_sample and len(document.text) <= CHECK_CHARACTERS:
            (expected,) = self.tokenizer.encode([document.text], [document.id])
            self.compared += 1
            self.same += np.array_equal(np.asarray(document.ids), expected)
        self.documents += 1

    def warn(self) -> None:
        """Log a warning if most documents differ."""
        if self.same < self.compared / 2:
            logger.warning(
                "source %s: the token ids of %s of %s compared documents differ from those of the tokenizer: were they "
                "made by another tokenizer?",
                *(self.source, self.compared - self.same, self.compared),
            )

    def record(self) -> dict[str, Any]:
        """Return the entry of a manifest's record; empty if no document is pre-tokenized."""
        return {"given_ids": {"compared": self.compared, "same": self.same}} if self.documents else {}


def training_documents(part: PartManifest, tokenizer: Tokenizer) -> Iterator[tuple[int, str]]:
    """Yield (number, text) of the documents in a part's training shards, in their order, in bounded memory.

    Raises UserError if a shard is missing or changed since the manifest was written.
    """
    number = 0
    for batch in _batches_of_ids(part):
        alone = len(batch) == 1  # perhaps longer than a batch: decoded in segments
        texts = [text_of(batch[0], tokenizer.decode)] if alone else tokenizer.decode_batch(batch)
        yield from enumerate(texts, number)
        number += len(texts)


def _batches_of_ids(part: PartManifest) -> Iterator[list[np.ndarray]]:
    """Yield lists of documents' ids, each of about SEGMENT_IDS; a longer document is alone."""
    held: list[np.ndarray] = []
    size = 0
    for ids in _ids_of_shards(part):
        if held and size + len(ids) > SEGMENT_IDS:
            yield held
            held, size = [], 0
        held.append(ids)
        size += len(ids)
    if held:
        yield held


def _ids_of_shards(part: PartManifest) -> Iterator[np.ndarray]:
    import pyarrow as pa

    for shard in part.identity[TRAIN]["shards"]:
        path = part.directory / shard["path"]
        manifest.check_content(path, shard, part.path)
        with pa.memory_map(str(path)) as mapped, pa.ipc.open_file(mapped) as reader:
            for number in range(reader.num_record_batches):
                column = reader.get_batch(number).column(0)
                bounds, values = column.offsets.to_numpy(), column.values.to_numpy()
                for begin, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
                    yield values[begin:end]
