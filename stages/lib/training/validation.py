"""The figures of an objective, and its loss in bits per byte, on windows of each source's validation split.

`loss_bits_per_byte` is the loss divided by the bytes of the very targets on which it was measured. It is not the task
`bits_per_byte`, which reads whole documents: a window has no text before it, and the end of a document is a target.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist

from stages.lib.distributed.collectives import CollectiveError
from stages.lib.errors import UserError
from stages.lib.model.loss import IGNORED
from stages.lib.tokens.data_order import permute

if TYPE_CHECKING:
    from stages.lib.model.transformer import Transformer
    from stages.lib.tokens.corpus import Corpus
    from stages.lib.training.objectives.objective import Objective

Windows = tuple[np.ndarray, ...]
"""Inputs and targets, int64 [windows, L] each; or the arrays of another objective's batch, as int64."""


class Validation:
    """The validation split of each source.

    `windows`: inputs and targets by source. `num_bytes`: text bytes of all targets by source, where they are known.
    `document_end`: the token that ends a document, if attention stays within documents. `texts`: a digest of the
    windows by source: losses of different windows are no curve.
    """

    def __init__(
        self, windows: Mapping[str, Windows], num_bytes: Mapping[str, float], document_end: int | None = None
    ) -> None:
        self.windows, self.num_bytes, self.document_end = windows, num_bytes, document_end
        self.texts = {source: _digest(arrays) for source, arrays in windows.items()}
        self.num_tokens = sum(arrays[0].size for arrays in windows.values())

    @torch.no_grad()
    def evaluate(
        self,
        objective: Objective,
        model: Transformer,
        micro_batch_size: int,
        device: torch.device,
        before_pass: Callable[[int, int], None] | None = None,
    ) -> dict[str, dict[str, Any]]:
        """Return {source: {"loss", ..., "text"}}; all ranks call it and get the same.

        Each source has the objective's validation figures, with `num_bytes` "loss_bits_per_byte", and the digest of its
        windows. Each rank runs the same number of forward passes, otherwise FSDP would wait for ever: a short share is
        padded with windows that have no target. `before_pass(done, total)` is called before each pass, and may raise.
        """
        rank, world_size = dist.get_rank(), dist.get_world_size()
        rows_per_pass = micro_batch_size * world_size
        done, total = 0, sum(-(-len(windows[0]) // rows_per_pass) for windows in self.windows.values())
        results: dict[str, dict[str, Any]] = {}
        for source, windows in self.windows.items():
            sums = torch.zeros(len(objective.figures), dtype=torch.float64, device=device)
            for first in range(0, len(windows[0]), rows_per_pass):
                if before_pass is not None:
                    before_pass(done, total)
                done += 1
                begin = first + rank * micro_batch_size
                rows = [
                    _rows(array, begin, micro_batch_size, IGNORED if array is windows[1] else 0).to(device)
                    for array in windows
                ]
                sums += objective.sums(model, rows, self.document_end)[1]
            dist.all_reduce(sums)
            count = objective.count(windows)
            means = dict(zip(objective.figures, (sums / count).tolist(), strict=True))
            results[source] = {name: means[name] for name in objective.validation_figures}
            if source in self.num_bytes:
                bits = means["loss"] * count / math.log(2)
                results[source]["loss_bits_per_byte"] = bits / self.num_bytes[source]
            results[source]["text"] = self.texts[source]
        return results


def check_finite(results: Mapping[str, Mapping[str, Any]], step: int) -> None:
    """Raise CollectiveError if a validation loss is not finite."""
    for source, scores in results.items():
        if not math.isfinite(scores["loss"]):
            raise CollectiveError(
                f"the weights overflowed: the validation loss of {source} is {scores['loss']} at step {step}"
            )


def from_corpus(
    corpus: Corpus, sources: Iterable[str], seq_len: int, tokens: int, document_end: int | None = None
) -> Validation:
    """Return windows of the validation split of some sources of a corpus, at most `tokens` tokens each.

    Raises UserError if a source has too little validation text.
    """
    windows: dict[str, Windows] = {}
    num_bytes: dict[str, float] = {}
    for source in sources:
        stream = corpus.stream(source, "validation")
        windows[source] = _, targets = _windows(stream, source, seq_len, tokens, corpus.tokenizer)
        num_bytes[source] = float(corpus.bytes_of_ids(source)[targets[targets != IGNORED]].sum())
        if not num_bytes[source]:
            raise UserError(
                f"source {source} has fewer than two tokens of validation text; raise sources.{source}.validation, "
                "or validation.tokens"
            )
    return Validation(windows, num_bytes, document_end)


def _windows(stream: Any, source: str, seq_len: int, limit: int, tokenizer: Mapping[str, Any]) -> Windows:
    """Return windows of at most `limit` tokens, spread over the split; a shorter one is padded.

    They are the same in every run and for every seed, and those of a lower limit are among those of a higher one. The
    BOS that follows a document's end is not a target: it is certain, and does not measure the model.
    """
    total = max(0, len(stream) - 1)
    count = -(-total // seq_len)
    chosen: Any = permute(np.arange(min(count, -(-limit // seq_len))), count, f"validation/{source}") if count else []
    inputs = np.zeros((len(chosen), seq_len), np.int64)
    targets = np.full((len(chosen), seq_len), IGNORED, np.int64)
    for row, (window, number) in enumerate(sorted((int(window), number) for number, window in enumerate(chosen))):
        length = min(seq_len, limit - number * seq_len, total - window * seq_len)
        tokens = stream.read(window * seq_len, length + 1).astype(np.int64)
        inputs[row, :length] = tokens[:-1]
        begins = (tokens[:-1] == tokenizer["eos"]) & (tokens[1:] == tokenizer["bos"]) & tokenizer["bos_added"]
        targets[row, :length] = np.where(begins, IGNORED, tokens[1:])
    return inputs, targets


def _digest(arrays: Windows) -> str:
    hashed = hashlib.sha256(str([array.shape for array in arrays]).encode())
    for array in arrays:
        hashed.update(np.ascontiguousarray(array, np.int64).tobytes())
    return hashed.hexdigest()[:16]


def _rows(array: np.ndarray, begin: int, count: int, fill: int) -> torch.Tensor:
    rows = torch.from_numpy(array[begin : begin + count])
    missing = count - len(rows)
    return torch.nn.functional.pad(rows, (*[0, 0] * (rows.dim() - 1), 0, missing), value=fill)
