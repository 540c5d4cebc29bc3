"""Log-likelihoods of continuations after their contexts, with each context passed through the model once.

lm-evaluation-harness repeats the context for every choice of a question. Here the distinct continuations of a context
stand behind it in one row. The positions of each go on from the context, and it attends to the context and to itself
only, so its log-likelihood is that of a row of its own, up to rounding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

Ids = tuple[int, ...]

SHARING = ("llama", "mistral", "qwen3")
"""The model types whose rows may hold several continuations: masked attention, then a linear head, is all of them."""

PADDING = -1
HEAD_ROWS = 2048
"""Positions whose logits are in memory at a time: a vocabulary of 128k tokens needs 1 GB in float32."""


@dataclass(frozen=True)
class Row:
    """A context and its continuations, each of at least one token."""

    context: Ids
    continuations: tuple[Ids, ...]

    @property
    def num_tokens(self) -> int:
        """Return the length as an input: the last token of a continuation is only predicted."""
        return len(self.context) + sum(len(continuation) - 1 for continuation in self.continuations)


@dataclass(frozen=True)
class Score:
    """The score of a continuation."""

    loglikelihood: float
    """In nats."""

    is_greedy: bool
    """True if each of its tokens has the highest logit."""


def fit(context: Sequence[int], continuation: Sequence[int], window: int) -> tuple[Ids, Ids]:
    """Cut the context from the left, so that the input has at most `window` tokens, as the harness does."""
    excess = max(len(context) + len(continuation) - 1 - window, 0)
    return tuple(context[excess:]), tuple(continuation)


def rows_of(pairs: Iterable[tuple[Ids, Ids]], window: int, shared: bool) -> list[Row]:
    """Return rows that hold each different (context, continuation) once, the longest first.

    A row has at most `window` tokens. `shared`: continuations of one context share rows.
    """
    by_context: dict[Ids, dict[Ids, None]] = {}
    for context, continuation in pairs:
        by_context.setdefault(context, {})[continuation] = None
    rows: list[Row] = []
    for context, continuations in by_context.items():
        rows += _packed(context, continuations, window if shared else 0)
    return sorted(rows, key=lambda row: (-row.num_tokens, row.context, row.continuations))


def _packed(context: Ids, continuations: Iterable[Ids], window: int) -> Iterator[Row]:
    taken: list[Ids] = []
    length = len(context)
    for continuation in continuations:
        if taken and length + len(continuation) - 1 > window:
            yield Row(context, tuple(taken))
            taken, length = [], len(context)
        taken.append(continuation)
        length += len(continuation) - 1
    yield Row(context, tuple(taken))


def shares(model: Any) -> bool:
    """Return True if a model's rows may hold several continuations: their masks would take the place of a window's."""
    return model.config.model_type in SHARING and getattr(model.config, "sliding_window", None) is None


@torch.inference_mode()
def score(model: Any, rows: Sequence[Row]) -> dict[tuple[Ids, Ids], Score]:
    """Score a batch of rows: {(context, continuation): score}.

    `model`: a causal model of transformers, for several continuations in a row one that `shares`. Log-likelihoods are
    computed in float32.
    """
    device, length = model.device, max(row.num_tokens for row in rows)
    tokens, positions, segments = (torch.full((len(rows), length), fill, dtype=torch.long) for fill in (0, 0, PADDING))
    at_row: list[int] = []
    at_column: list[int] = []
    targets: list[int] = []
    for number, row in enumerate(rows):
        column = len(row.context)
        tokens[number, :column] = torch.tensor(row.context)
        positions[number, :column] = torch.arange(column)
        segments[number, :column] = 0
        for segment, continuation in enumerate(row.continuations, 1):
            end = column + len(continuation) - 1
            tokens[number, column:end] = torch.tensor(continuation[:-1], dtype=torch.long)
            positions[number, column:end] = torch.arange(len(row.context), len(row.context) + end - column)
            segments[number, column:end] = segment
            at_row += [number] * len(continuation)
            at_column += [len(row.context) - 1, *range(column, end)]
            targets += continuation
            column = end
    inputs: dict[str, Any] = {"input_ids": tokens.to(device), "use_cache": False}
    if any(len(row.continuations) > 1 for row in rows):  # padding stands behind all else: a causal mask ignores it
        inputs |= {"attention_mask": _mask(segments.to(device)), "position_ids": positions.to(device)}
    places = torch.tensor(at_row, device=device), torch.tensor(at_column, device=device)
    values, greedy = _at(model, inputs, places, torch.tensor(targets, device=device))
    scores, at = {}, 0
    for row in rows:
        for continuation in row.continuations:
            own = slice(at, at + len(continuation))
            scores[row.context, continuation] = Score(float(values[own].sum()), bool(greedy[own].all()))
            at += len(continuation)
    return scores


def _mask(segments: torch.Tensor) -> torch.Tensor:
    """Return the mask [B, 1, L, L] of what attends (dimension 2) to what. `segments` [B, L]: 0 is the context."""
    query, key = segments[:, :, None], segments[:, None, :]
    causal = torch.ones(segments.shape[1], segments.shape[1], dtype=torch.bool, device=segments.device).tril()
    return (causal & ((key == 0) | (key == query))).unsqueeze(1)


def _at(
    model: Any, inputs: dict[str, Any], places: tuple[torch.Tensor, torch.Tensor], targets: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the log-probabilities (float64) of the targets [N] at their places, and if each is the most likely one."""
    if shares(model):  # most logits of a context are not needed
        hidden, head = model.base_model(**inputs).last_hidden_state[places], model.get_output_embeddings()
    else:
        hidden, head = model(**inputs).logits[places], torch.nn.Identity()
    values, greedy = [], []
    for states, expected in zip(hidden.split(HEAD_ROWS), targets.split(HEAD_ROWS), strict=True):
        logits = head(states).float()
        greedy.append(logits.argmax(-1) == expected)
        values.append(logits.log_softmax(-1).gather(-1, expected[:, None])[:, 0].double())
    return torch.cat(values).cpu(), torch.cat(greedy).cpu()
