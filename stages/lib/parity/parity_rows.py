"""The tokens on which an export and its model are compared: validation tokens, or training tokens without them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from stages.lib.tokens.corpus import Corpus

ROWS, ROW_TOKENS = 4, 32
"""Through all blocks. A wrong conversion is wrong at each token, and tokens are most of the time of a large model."""

LONGEST = 8192
"""The longest row, in tokens, as long as the model's context if that is shorter. Angles of RoPE differ at its end."""

PROMPT_TOKENS = 16


def rows(corpus: Corpus, max_position_embeddings: int) -> torch.Tensor:
    """Rows spread over the sources: int64 [ROWS, at most ROW_TOKENS]."""
    return _spread(corpus, min(ROW_TOKENS, max_position_embeddings))


def prompts(corpus: Corpus, max_position_embeddings: int, new_tokens: int) -> torch.Tensor:
    """Prompts with room for `new_tokens` after them: int64 [ROWS, at most PROMPT_TOKENS]."""
    return _spread(corpus, max(1, min(PROMPT_TOKENS, max_position_embeddings - new_tokens)))


def long_row(corpus: Corpus, max_position_embeddings: int) -> torch.Tensor:
    """One row as long as the context: int64 [1, at most LONGEST]. A corpus with fewer tokens is repeated."""
    length, found = min(LONGEST, max_position_embeddings), np.empty(0, np.int64)
    for stream in _streams(corpus):
        found = np.concatenate([found, stream.read(0, length - len(found)).astype(np.int64)])
        stream.close()
    return torch.from_numpy(np.resize(found, length)).unsqueeze(0)


def _spread(corpus: Corpus, length: int) -> torch.Tensor:
    streams = _streams(corpus)
    length = min(length, *(len(stream) for stream in streams))
    found = []
    for number in range(ROWS):
        stream = streams[number % len(streams)]
        found.append(stream.read(number * (len(stream) - length) // ROWS, length).astype(np.int64))
    for stream in streams:
        stream.close()
    return torch.from_numpy(np.stack(found))


def _streams(corpus: Corpus) -> list[Any]:
    streams = [corpus.stream(source, "validation") for source in sorted(corpus.sources)]
    streams = [stream for stream in streams if len(stream)]
    return streams or [corpus.stream(source) for source in sorted(corpus.sources)]
