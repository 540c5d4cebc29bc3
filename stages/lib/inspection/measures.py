"""Measures of sampled documents: bytes, tokens, validation share, repetitions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from stages.lib.inspection import terminal
from stages.lib.inspection.terminal import several, share
from stages.lib.sources import duplicates
from stages.lib.sources.entries import Document
from stages.lib.sources.split import VALIDATION

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
        sizes = [f"{terminal.size(text)} of text"] * bool(self.bytes) + [_rounded(tokens)] * bool(self.tokens)
        if sizes:
            print(f"estimate for the whole source: {' and '.join(sizes)}")


def _rounded(tokens: float) -> str:
    return f"{int(float(f'{tokens:.3g}')):,} tokens"
