"""The figures of an objective, and bits per byte of text, on the validation split of each source."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist

from stages.lib.distributed.collectives import CollectiveError
from stages.lib.errors import UserError
from stages.lib.model.loss import IGNORED

if TYPE_CHECKING:
    from stages.lib.model.transformer import Transformer
    from stages.lib.tokens.corpus import Corpus
    from stages.lib.training.objectives.objective import Objective

Windows = tuple[np.ndarray, ...]
"""Inputs and targets, int64 [windows, L] each; or the arrays of another objective's batch, as int64."""


class Validation:
    """The validation split of each source.

    `windows`: inputs and targets by source. `bytes_per_target`: text bytes per target by source, if targets are all of
    a text. `document_end`: the token that ends a document, if attention stays within documents.
    """

    def __init__(
        self,
        windows: Mapping[str, Windows],
        bytes_per_target: Mapping[str, float],
        document_end: int | None = None,
    ) -> None:
        self.windows, self.bytes_per_target, self.document_end = windows, bytes_per_target, document_end

    @torch.no_grad()
    def evaluate(
        self,
        objective: Objective,
        model: Transformer,
        micro_batch_size: int,
        device: torch.device,
        poll: Callable[[], None] | None = None,
    ) -> dict[str, dict[str, float]]:
        """Return {source: {"loss", ...}}; all ranks call it and get the same.

        Each source has the objective's validation figures, and with `bytes_per_target` "bits_per_byte". Each rank runs
        the same number of forward passes, otherwise FSDP would wait for ever: a short share is padded with windows that
        have no target. `poll` is called before each forward pass, and may raise.
        """
        rank, world_size = dist.get_rank(), dist.get_world_size()
        results = {}
        for source, windows in self.windows.items():
            sums = torch.zeros(len(objective.figures), dtype=torch.float64, device=device)
            for first in range(0, len(windows[0]), micro_batch_size * world_size):
                if poll is not None:
                    poll()
                begin = first + rank * micro_batch_size
                rows = [
                    _rows(array, begin, micro_batch_size, IGNORED if array is windows[1] else 0).to(device)
                    for array in windows
                ]
                sums += objective.sums(model, rows, self.document_end)[1]
            dist.all_reduce(sums)
            means = dict(zip(objective.figures, (sums / objective.count(windows)).tolist(), strict=True))
            results[source] = {name: means[name] for name in objective.validation_figures}
            if source in self.bytes_per_target:
                results[source]["bits_per_byte"] = means["loss"] / math.log(2) / self.bytes_per_target[source]
        return results


def check_finite(results: Mapping[str, Mapping[str, float]], step: int) -> None:
    """Raise CollectiveError if a validation loss is not finite."""
    for source, scores in results.items():
        if not math.isfinite(scores["loss"]):
            raise CollectiveError(
                f"the weights overflowed: the validation loss of {source} is {scores['loss']} at step {step}"
            )


def from_corpus(
    corpus: Corpus, sources: Iterable[str], seq_len: int, tokens: int, document_end: int | None = None
) -> Validation:
    """Return the validation split of some sources of a corpus, at most `tokens` tokens each.

    Raises UserError if a source has too little validation text.
    """
    windows = {
        source: _windows(corpus.stream(source, "validation"), seq_len, tokens, corpus.tokenizer) for source in sources
    }
    bytes_per_target = {source: corpus.bytes_per_target(source) for source in sources}
    for source, (_, targets) in windows.items():
        if not (targets != IGNORED).any() or not bytes_per_target[source]:
            raise UserError(
                f"source {source} must have at least two tokens of validation text, and has fewer; "
                f"raise sources.{source}.validation"
            )
    return Validation(windows, bytes_per_target, document_end)


def _windows(stream: Any, seq_len: int, limit: int, tokenizer: Mapping[str, Any]) -> Windows:
    """Return windows over the first `limit` tokens; the last one is padded.

    The BOS that follows a document's end is not a target: it is certain, and does not measure the model.
    """
    tokens = stream.read(0, limit + 1).astype(np.int64)
    count = -(-(len(tokens) - 1) // seq_len)
    inputs, targets = np.zeros((count, seq_len), np.int64), np.full((count, seq_len), IGNORED, np.int64)
    inputs.ravel()[: len(tokens) - 1] = tokens[:-1]
    begins = (tokens[:-1] == tokenizer["eos"]) & (tokens[1:] == tokenizer["bos"]) & tokenizer["bos_added"]
    targets.ravel()[: len(tokens) - 1] = np.where(begins, IGNORED, tokens[1:])
    return inputs, targets


def _rows(array: np.ndarray, begin: int, count: int, fill: int) -> torch.Tensor:
    rows = torch.from_numpy(array[begin : begin + count])
    missing = count - len(rows)
    return torch.nn.functional.pad(rows, (*[0, 0] * (rows.dim() - 1), 0, missing), value=fill)
