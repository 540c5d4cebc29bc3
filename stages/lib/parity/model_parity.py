"""The checks of an exported model, in their order, and their entries in parity.json."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from stages.lib.huggingface import export
from stages.lib.model.transformer import Transformer
from stages.lib.parity import block_parity, parity, parity_rows, tensor_parity

if TYPE_CHECKING:
    from stages.lib.parity.tensor_parity import Export
    from stages.lib.tokens.corpus import Corpus


WHOLE_TOKENS = 512
"""Tokens of the row on which whole models are compared."""


def compare(exported: Export, corpus: Corpus, tolerance: float, whole: bool) -> tuple[dict[str, Any], torch.Tensor]:
    """Compare the export with the checkpoint on tokens of the corpus; returns (entries of parity.json, greedy text).

    Every block runs on a few short rows, the first one also on a row as long as the context: what depends on the
    position, RoPE's angles, is the same in all blocks. `whole`: run the whole models, too, which holds both in memory;
    without it, logits are those of the head over the blocks' last outputs, and the greedy text is empty.

    Raises ParityError naming what differs first.
    """
    context = exported.model_config.max_position_embeddings
    tensor_parity.compare_names(exported)
    rows = parity_rows.rows(corpus, context)
    long_row = parity_rows.long_row(corpus, context)
    first, *_ = block_parity.compare_blocks(exported, long_row, tolerance, num_layers=1)
    blocks, ours, theirs = block_parity.compare_blocks(exported, rows, tolerance)
    logits = block_parity.compare_head(exported, ours, theirs, tolerance)
    report = {"checks": ["tensors", "blocks", "head"], "first_block": first, "blocks": blocks, "logits": logits}
    if not whole:
        return report, torch.empty(0, 0, dtype=torch.int64)
    logits, text = _compare_whole(exported, corpus, long_row[:, :WHOLE_TOKENS], tolerance)
    return report | {"checks": [*report["checks"], "whole model", "greedy text"], "logits": logits}, text


def _compare_whole(
    exported: Export, corpus: Corpus, row: torch.Tensor, tolerance: float
) -> tuple[dict[str, Any], torch.Tensor]:
    """The figures of the logits, and the greedy text of transformers' model."""
    ours, theirs = _load_ours(exported), parity.load_exported(exported.directory)
    logits = parity.compare_logits(ours, theirs, [row[:, :1], row], tolerance)  # one token has kernels of its own
    prompts = parity_rows.prompts(corpus, exported.model_config.max_position_embeddings, parity.NEW_TOKENS)
    return logits, parity.compare_text(ours, theirs, prompts, max(logits["allowed"], logits["max_difference"]))


def _load_ours(exported: Export) -> Transformer:
    """Our own model with the weights as exported."""
    model_config, vocab_size = exported.model_config, exported.vocab_size
    with torch.device("meta"):
        ours = Transformer(model_config, vocab_size)
    state = export.rounded_state(model_config, vocab_size, exported.read, exported.dtype)
    ours.load_state_dict(state, assign=True)
    return ours
