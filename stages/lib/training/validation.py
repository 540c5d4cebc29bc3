"""Loss and bits per byte on the validation split of each source."""

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist

from stages.lib.errors import UserError
from stages.lib.model.llama import documents_of
from stages.lib.model.loss import IGNORED
from stages.lib.recipe import operation


@dataclass(frozen=True, kw_only=True)
class ValidationRecipe:
    """When the validation split is scored while training."""

    every: int = operation(500, minimum=1)
    """Steps between two evaluations; each milestone is evaluated as well."""

    tokens: int = operation(1 << 20, minimum=1)
    """At most so many tokens of each source's validation split, from its beginning."""


class Validation:
    """What is held out of training, by source.

    `windows`: {source: (inputs, targets)}, int64 [windows, L] each. `bytes_per_target`: {source: text bytes a target}.
    `document_end`: the token that ends a document, where documents are kept apart.
    """

    def __init__(self, windows, bytes_per_target, document_end=None):
        self.windows, self.bytes_per_target, self.document_end = windows, bytes_per_target, document_end

    @torch.no_grad()
    def evaluate(self, model, micro_batch_size, device, poll=None):
        """{source: {"loss": nats a token, "bits_per_byte"}}; every rank calls it and gets the same.

        Each rank runs the same number of forwards, or FSDP would wait for ever: a short share is filled up with windows
        that have no target. `poll` is called before each forward, and may raise.
        """
        rank, world_size = dist.get_rank(), dist.get_world_size()
        results = {}
        for source, (inputs, targets) in self.windows.items():
            sums = torch.zeros(2, dtype=torch.float64, device=device)
            for first in range(0, len(inputs), micro_batch_size * world_size):
                if poll is not None:
                    poll()
                begin = first + rank * micro_batch_size
                tokens = _rows(inputs, begin, micro_batch_size, 0).to(device)
                wanted = _rows(targets, begin, micro_batch_size, IGNORED).to(device)
                loss, _ = model(tokens, wanted, documents_of(tokens, self.document_end))
                sums += torch.stack([loss.double(), (wanted != IGNORED).sum().double()])
            dist.all_reduce(sums)
            loss = (sums[0] / sums[1]).item()
            results[source] = {"loss": loss, "bits_per_byte": loss / math.log(2) / self.bytes_per_target[source]}
        return results


def of_corpus(corpus, sources, seq_len, tokens, document_end=None):
    """The validation split of some sources of a corpus, at most `tokens` tokens each.

    Raises UserError where a source has too little text to be scored.
    """
    windows = {
        source: _windows(corpus.stream(source, "validation"), seq_len, tokens, corpus.tokenizer) for source in sources
    }
    bytes_per_target = {source: corpus.bytes_per_target(source) for source in sources}
    for source, (_, targets) in windows.items():
        if not (targets != IGNORED).any() or not bytes_per_target[source]:
            raise UserError(
                f"source {source} must have validation text of two tokens at least, and has none; "
                f"raise sources.{source}.validation"
            )
    return Validation(windows, bytes_per_target, document_end)


def _windows(stream, seq_len, limit, tokenizer):
    """Inputs and targets int64 [windows, L] over the first `limit` tokens; the last window is filled up.

    The BOS that follows a document's end is no target: it is certain in text and says nothing about the model.
    """
    tokens = stream.read(0, limit + 1).astype(np.int64)
    count = -(-(len(tokens) - 1) // seq_len)
    inputs, targets = np.zeros((count, seq_len), np.int64), np.full((count, seq_len), IGNORED, np.int64)
    inputs.ravel()[: len(tokens) - 1] = tokens[:-1]
    begins = (tokens[:-1] == tokenizer["eos"]) & (tokens[1:] == tokenizer["bos"]) & tokenizer["bos_added"]
    targets.ravel()[: len(tokens) - 1] = np.where(begins, IGNORED, tokens[1:])
    return inputs, targets


def _rows(array, begin, count, fill):
    rows = torch.from_numpy(array[begin : begin + count])
    missing = count - len(rows)
    return torch.nn.functional.pad(rows, (0, 0, 0, missing), value=fill)
