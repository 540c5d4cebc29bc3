"""Token ids as a person reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stages.lib import files
from stages.lib.inspection import terminal
from stages.lib.tokenizer import custom

if TYPE_CHECKING:
    from stages.lib.tokenizer.tokenizer import Tokenizer


class Spelling:
    """The texts of ids by a Tokenizer. `unknown`: its id for text that it cannot encode, or None."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        import tokenizers

        self.bos, self.eos, self.decode = tokenizer.bos, tokenizer.eos, tokenizer.decode
        self._package = tokenizers.Tokenizer.from_file(str(tokenizer.package))
        piece = custom.unknown_of(files.read_json(tokenizer.package))
        self.unknown = None if piece is None else self._package.token_to_id(piece)

    def text(self, ids: np.ndarray) -> str:
        """Return the text of ids, with <BOS> and <EOS> written out."""
        special = np.flatnonzero((ids == self.bos) | (ids == self.eos))
        parts, before = [], 0
        for at in [*special.tolist(), len(ids)]:
            parts.append(self.decode(ids[before:at].tolist()) if at > before else "")
            parts.append(f"<{self._special(int(ids[at]))}>" if at < len(ids) else "")
            before = at + 1
        return "".join(parts)

    def named(self, ids: np.ndarray) -> str:
        """Return ids with their tokens: 312 'ing' 2 EOS."""
        return "  ".join(f"{number} {self._token(number)}" for number in ids.tolist())

    def _special(self, number: int) -> str:
        return "BOS" if number == self.bos else "EOS"

    def _token(self, number: int) -> str:
        if number in (self.bos, self.eos):
            return self._special(number)
        token = self._package.id_to_token(number)
        return "no token" if token is None else f"'{terminal.visible(token)}'"
