"""The packings: how a source's stream of tokens becomes rows of `seq_len` + 1 tokens.

To add a packing, write a `Layout` (for packed documents: a GroupCounts and a Group of document_rows.py) and enter it in
PACKINGS.
"""

from collections.abc import Callable
from typing import Protocol

import numpy as np

from stages.lib.errors import UserError
from stages.lib.tokens.corpus import Segments, TokenStream
from stages.lib.tokens.document_rows import DocumentRows, Group, GroupCounts
from stages.lib.tokens.packings.best_fit import BestFitCounts, BestFitGroup
from stages.lib.tokens.packings.chunks import Chunks
from stages.lib.tokens.packings.concat import ConcatCounts, ConcatGroup

CHUNK = "chunk"


class Layout(Protocol):
    """The rows of a source. `rows`, `targets`: number of rows, and of tokens that are targets, per epoch.

    `packs_documents`: rows are made of documents; they may be short, and are then filled up with EOS. `row_name`: the
    word for a row in messages.
    """

    rows: int
    targets: int
    packs_documents: bool
    row_name: str

    def rows_at(self, epoch: int, positions: np.ndarray, /) -> np.ndarray:
        """Return the row at each position of an epoch; int64 arrays."""

    def segments(self, epoch: int, rows: np.ndarray, /) -> Segments:
        """Return the segments of some rows of an epoch."""

    def targets_before(self, epoch: int, position: int, /) -> int:
        """Return the number of targets in the first `position` rows of an epoch."""


def _lay_out_chunks(source: str, stream: TokenStream, seq_len: int, key: str) -> Layout:
    if len(stream) <= seq_len:
        raise UserError(
            f"pretrain.seq_len must be less than the tokens of each source: {source} has {len(stream)}, got {seq_len}"
        )
    return Chunks(stream, seq_len, key)


def _lay_out_documents(
    counts_type: Callable[[int, int], GroupCounts], group_type: Callable[[np.ndarray, np.ndarray, int, str], Group]
) -> Callable[[str, TokenStream, int, str], Layout]:
    def lay_out(source: str, stream: TokenStream, seq_len: int, key: str) -> Layout:
        layout = DocumentRows(stream, seq_len, key, counts_type, group_type)
        if layout.targets < 1:
            raise UserError(f"source {source} has no document of at least two tokens")
        return layout

    return lay_out


PACKINGS: dict[str, Callable[[str, TokenStream, int, str], Layout]] = {
    CHUNK: _lay_out_chunks,
    "concat": _lay_out_documents(ConcatCounts, ConcatGroup),
    "best_fit": _lay_out_documents(BestFitCounts, BestFitGroup),
}
"""{value of `pretrain.packing`: function of (source, stream, seq_len, key) that returns the Layout of a source}.

`key` (text) names the order. They raise UserError if the source is too short.
"""
