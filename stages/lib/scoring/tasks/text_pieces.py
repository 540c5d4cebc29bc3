"""The task bits_per_byte, and pieces of validation text, chosen by a hash, of which tasks are made."""

from __future__ import annotations

import hashlib
import heapq
import io
from collections.abc import Iterable, Iterator, Sequence

from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.manifest import CorpusManifest
from stages.lib.scoring.tasks import task_files
from stages.lib.scoring.tasks.task import Row, TaskOptions, TextTask, ValidationText
from stages.lib.tokens.corpus import validation_documents

PIECE_BYTES = 2048  # the start of a piece has no context, which changes its bits by less than 1%


def read(corpus: CorpusManifest, seed: int, num_bytes: int, sources: Sequence[str] | None = None) -> ValidationText:
    """Read `num_bytes` of each source's validation text; a source that has none is skipped with a warning.

    `sources`: the sources to read, by default all. Raises UserError for one that the corpus does not have.
    """
    known = sorted(corpus.identity["sources"])
    for source in sources or ():
        if source not in known:
            raise UserError(f"evaluate.sources must name sources of {corpus.path} ({', '.join(known)}), got {source!r}")
    pools = {}
    for source in known if sources is None else sorted(sources):
        pool = sample(_pieces(validation_documents(corpus, source), source), seed, num_bytes)
        if pool:
            pools[source] = pool
        else:
            logger.warning("source %s has no validation text: it is not scored", source)
    return ValidationText(pools, corpus.path)


def _pieces(documents: Iterable[tuple[str, str]], source: str) -> Iterator[Row]:
    """Cut documents at line ends into pieces {"id", "document", "source", "text"} with unique ids; skip blank ones."""
    for name, text in documents:
        for number, piece in enumerate(cut(text, PIECE_BYTES)):
            if piece.strip():
                yield {"id": f"{name}#{number}", "document": name, "source": source, "text": piece}


def cut(text: str, num_bytes: int) -> Iterator[str]:
    """Cut a text at line ends into pieces of at most `num_bytes` bytes of UTF-8; a longer line is its own piece."""
    piece: list[str] = []
    size = 0
    for line in io.StringIO(text, newline="\n"):
        length = len(line.encode())
        if piece and size + length > num_bytes:
            yield "".join(piece)
            piece, size = [], 0
        piece.append(line)
        size += length
    if piece:
        yield "".join(piece)


def sample(pieces: Iterable[Row], seed: int, num_bytes: int) -> list[Row]:
    """Return the pieces with the lowest hashes of (seed, id) that together have `num_bytes`, in order of the hash.

    The choice does not depend on the order of `pieces`. Memory is that of the result.
    """
    heap: list[tuple[int, str, Row]] = []
    total = 0
    for piece in pieces:
        digest = hashlib.blake2b(f"{seed}\0{piece['id']}".encode(), digest_size=16).digest()
        key = -int.from_bytes(digest)  # heapq keeps the smallest on top: here the highest hash
        heapq.heappush(heap, (key, piece["id"], piece))
        total += len(piece["text"].encode())
        while heap and total - len(heap[0][2]["text"].encode()) >= num_bytes:
            total -= len(heapq.heappop(heap)[2]["text"].encode())
    return [piece for _, _, piece in sorted(heap, key=lambda entry: (-entry[0], entry[1]))]


def first_bytes(pieces: Sequence[Row], num_bytes: int) -> list[Row]:
    """Return the first pieces that together have at least `num_bytes`, or all."""
    taken: list[Row] = []
    total = 0
    for piece in pieces:
        if total >= num_bytes:
            break
        taken.append(piece)
        total += len(piece["text"].encode())
    return taken


class BitsPerByte(TextTask):
    """The bits that a model needs per byte of text, which do not depend on the tokenizer: bits_per_byte_SOURCE."""

    name = "bits_per_byte"
    metric = "bits_per_byte"
    description = "bits per byte of validation text"
    format = task_files.ROLLING

    def matches(self, harness_task: str) -> bool:
        """Return True for bits_per_byte_SOURCE."""
        return harness_task.startswith(f"{self.name}_")

    def rows(self, text: ValidationText, options: TaskOptions) -> dict[str, list[Row]]:
        """Make the rows of each source: `bytes_per_source` bytes of its pieces."""
        return {
            f"{self.name}_{source}": first_bytes(pool, options.bytes_per_source) for source, pool in text.pools.items()
        }
