"""Exact duplicates: documents whose text is the same but for white space.

A part's documents are numbered in the order in which they are read, those that cannot be read and those that filters
leave out not counted. Of each a hash is kept (xxh3, 128 bits: among 10^12 documents, two different ones have the same
with a chance of 10^-15), in sorted runs, so that runs of any number can be held against each other within bounded
memory.
"""

from array import array

import numpy as np

from stages.lib import files
from stages.lib.errors import UserError
from stages.lib.sources.documents import Document, Dropped

RUN = 1 << 22
"""Documents of a run: 100 MB."""

PIECE_CHARACTERS = 1 << 20  # of a text, whose words are parted at once: each is an object of 50 bytes and more

VALIDATION_BIT = np.uint64(1 << 63)
"""Not set in the number of a validation document, which so comes before all that are trained on."""


class Runs:
    """Collects hashes and writes them in sorted runs, uint64 arrays [3, documents]: high and low half, number."""

    def __init__(self, directory):
        self.directory, self.names = directory, []
        self._begin()

    def _begin(self):
        self._digests, self._numbers = bytearray(), array("Q")  # no objects: 24 bytes a document

    def add(self, digest, number, validation):
        """A document: 16 bytes of hash, its number in the part, and whether it is held out of training."""
        self._digests += digest
        self._numbers.append(number if validation else number | int(VALIDATION_BIT))
        if len(self._numbers) == RUN:
            self.flush()

    def flush(self):
        """Write what is held, if anything."""
        if not self._numbers:
            return
        halves = np.frombuffer(self._digests, ">u8").reshape(-1, 2).T.astype(np.uint64)
        numbers = np.frombuffer(self._numbers, np.uint64)
        order = np.lexsort((numbers, halves[1], halves[0]))
        name = f"run-{len(self.names):05d}.npy"
        save(self.directory / name, np.stack([half[order] for half in (*halves, numbers)]))
        self.names.append(name)
        self._begin()


def save(path, found):
    """Write an array as .npy, whole or not at all. (numpy itself forgets why the system refused to write.)"""
    with files.atomic(path) as file:
        np.save(files.HashingWriter(file), found)


def of_text(text):
    """The hash of a text, in which runs of white space are all the same: 16 bytes."""
    import xxhash

    hashing, some, parted = xxhash.xxh3_128(), False, False
    for begin in range(0, len(text), PIECE_CHARACTERS):
        piece = text[begin : begin + PIECE_CHARACTERS]
        words = piece.split()
        if words:
            if some and (parted or piece[0].isspace()):
                hashing.update(b" ")
            hashing.update(" ".join(words).encode())
            some, parted = True, piece[-1].isspace()
        else:
            parted = True
    return hashing.digest()


def of_ids(ids):
    """The hash of token ids: 16 bytes."""
    import xxhash

    return xxhash.xxh3_128_digest(ids.astype("<i8").tobytes())


def repeated(runs, at_once=1 << 23):
    """The numbers of all documents but the first of each kind: one sorted int64 array for each owner.

    `runs`: [[path of a run]] of each owner; owners earlier in the list come first, and validation documents before all
    others. About `at_once` documents are held in memory at a time, of equal ones in a run the first alone, and 8 bytes
    for each duplicate.
    """
    owned = [(owner, path) for owner, paths in enumerate(runs) for path in paths]
    total = sum(_mapped(path).shape[1] for _, path in owned)
    slices = max(1, -(-total // at_once))
    bounds = [number * (1 << 64) // slices for number in range(slices + 1)]
    found = [[] for _ in runs]
    for first, end in zip(bounds, bounds[1:], strict=False):
        for owner, numbers in _repeated_between(owned, first, end):
            found[owner].append(numbers)
    return [_sorted(found, owner) for owner in range(len(runs))]


def _sorted(found, owner):
    """The numbers of an owner as one sorted array; what is held of them in pieces is let go."""
    numbers, found[owner] = np.concatenate([np.empty(0, np.int64), *found[owner]]), None
    numbers.sort()
    return numbers


def _mapped(path):
    """A run, which is open as long as it is held: of a large corpus they are more than the files that may be open."""
    return np.load(path, mmap_mode="r")


def _repeated_between(owned, first, end):
    """(owner, numbers) of the documents of which the hash's high half is in [first, end)."""
    pieces, owners = [], []
    for owner, path in owned:
        run = _mapped(path)
        begin = np.searchsorted(run[0], np.uint64(first))
        stop = run.shape[1] if end > np.iinfo(np.uint64).max else np.searchsorted(run[0], np.uint64(end))
        high, low, numbers = run[:, begin:stop]
        again = _like_the_one_before(high, low)  # of the same run: one of each goes on, however many there are
        if again.any():
            yield owner, _bare(numbers[again])
        pieces.append(run[:, begin:stop][:, ~again])
        owners.append(np.full(pieces[-1].shape[1], owner, np.int32))
    if not pieces:
        return
    (high, low, numbers), owners = np.concatenate(pieces, axis=1), np.concatenate(owners)
    order = np.lexsort((numbers & ~VALIDATION_BIT, owners, numbers >> np.uint64(63), low, high))
    again = order[_like_the_one_before(high[order], low[order])]
    for owner in np.unique(owners[again]):
        yield int(owner), _bare(numbers[again[owners[again] == owner]])


def _like_the_one_before(high, low):
    """[documents] booleans: whether the hash is that of the document before, by its halves in order."""
    same = np.zeros(len(high), bool)
    same[1:] = (high[1:] == high[:-1]) & (low[1:] == low[:-1])
    return same


def _bare(numbers):
    """The numbers of documents without the bit for the side of the split."""
    return (numbers & ~VALIDATION_BIT).astype(np.int64)


def without(found, numbers, total, path):
    """The entries of `documents.read`, those documents dropped whose number is in `numbers` (sorted).

    Raises UserError naming `path`, from where the numbers are, unless the documents are `total`.
    """
    waiting = iter(numbers.tolist())
    following, number = next(waiting, None), 0
    for entry in found:
        if not isinstance(entry, Document):
            yield entry
            continue
        if number == following:
            following = next(waiting, None)
            yield Dropped(entry.id, "duplicate", entry.text or "")
        else:
            yield entry
        number += 1
    if number != total:
        raise UserError(
            f"--duplicates {path} must be made of the documents that are read, and is of {total} in place of {number}; "
            "run -R hash_documents"
        )
