"""What is counted of documents that are looked at: bytes, tokens, sides of the split, repetitions."""

import numpy as np

from stages.lib.inspection import terminal
from stages.lib.inspection.terminal import several, share
from stages.lib.sources import duplicates
from stages.lib.sources.split import VALIDATION

BATCH = 1 << 20  # characters of text that are encoded at once


class Measures:
    """Counts documents that would be kept. `what`: the word for them; `tokenizer`: a Tokenizer or None."""

    def __init__(self, what, tokenizer):
        self.what, self.tokenizer = what, tokenizer
        self.bytes, self.tokens = [], []
        self.documents = self.validation = self.repeated = 0
        self._seen = set()

    def add(self, batch):
        """Count some documents; returns them, those of token ids with their text where the tokenizer is known.

        Raises UserError where an id is none of the tokenizer's.
        """
        from stages.lib.tokens import bos_eos, pretokenized

        if self.tokenizer is not None:
            batch = [pretokenized.with_text(document, self.tokenizer) for document in batch]
            encoded = bos_eos.ids_of(batch, lambda texts, _: self.tokenizer.encode(texts), np.int32)
            self.tokens += map(len, encoded)
        else:
            self.tokens += [len(document.ids) for document in batch if document.ids is not None]
        for document in batch:
            is_text = document.text is not None
            self.documents += 1
            self.validation += document.split == VALIDATION
            if is_text:
                self.bytes.append(len(document.text.encode()))
            key = duplicates.of_text(document.text) if is_text else duplicates.of_ids(document.ids)
            self.repeated += key in self._seen
            self._seen.add(key)
        return batch

    def print(self, validation):
        """Print what was counted. `validation`: the recipe's share of split keys."""
        print(
            f"kept: {several(self.documents, self.what)}, {self.validation:,} of them held out "
            f"({share(self.validation, self.documents)}; validation is {validation:g})"
        )
        print(f"repeated: {self.repeated:,} ({share(self.repeated, self.documents)}), the same as another of these")
        for lengths, unit in ((self.bytes, "bytes"), (self.tokens, "tokens")):
            if lengths:
                print()
                for line in terminal.histogram(lengths, f"{unit} a {self.what}"):
                    print(line)
        if sum(self.tokens) and self.bytes:
            total_bytes, total_tokens = sum(self.bytes), sum(self.tokens)
            print(
                f"{total_bytes / total_tokens:.3f} bytes a token, {total_tokens / total_bytes:.4f} tokens a byte, "
                f"without BOS and EOS"
            )

    def print_estimate(self, looked_at, total):
        """Print how much the source has, by what `looked_at` of its `total` bytes in files have."""
        if looked_at == total:
            return
        text, tokens = (sum(lengths) * total / looked_at for lengths in (self.bytes, self.tokens))
        said = [f"{terminal.size(text)} of text"] * bool(self.bytes) + [_rounded(tokens)] * bool(self.tokens)
        if said:
            print(f"by this the whole source has about {' and '.join(said)}")


def _rounded(tokens):
    return f"{int(float(f'{tokens:.3g}')):,} tokens"
