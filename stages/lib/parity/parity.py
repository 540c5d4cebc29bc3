"""Parity of a whole exported model with ours: logits and greedy text, compared with those of transformers.

Both run in float32 on the CPU with the weights as exported: correct code then differs by less than 1e-5 at logits of
standard deviation 1, while in bfloat16 it differs by 0.06, which can hide a mistake. Both are held in memory.
"""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from stages.lib.log import logger
from stages.lib.model.experts import choice_margins
from stages.lib.model.transformer import Transformer
from stages.lib.parity import rounding
from stages.lib.parity.logit_figures import LogitFigures
from stages.lib.parity.stored_weights import config_of

if TYPE_CHECKING:
    from pathlib import Path

NEW_TOKENS = 32

TIE = 1e-5
"""Margin of a router's choice that rounding may turn round; rounding of all layers before it adds up."""


class ParityError(Exception):
    """The exported model or tokenizer differs from the trained one; the export must not be used."""


def load_exported(directory: Path) -> Any:
    """The export as transformers loads it, in float32. Raises ParityError if a weight is missing or does not fit.

    transformers itself only warns about a missing weight, and fills it with random numbers.
    """
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    load: Any = AutoModelForCausalLM.from_pretrained  # its type ignores output_loading_info
    model, info = load(directory, config=config_of(directory), dtype=torch.float32, output_loading_info=True)
    wrong = {name: sorted(map(str, keys)) for name, keys in info.items() if keys}
    if wrong:
        raise ParityError(f"the weights of {directory} must be complete, transformers reports {json.dumps(wrong)}")
    return model.eval()


@torch.inference_mode()
def compare_logits(ours: Transformer, theirs: Any, batch: Sequence[torch.Tensor], tolerance: float) -> dict[str, Any]:
    """Compare the logits of our model and transformers' on a batch of rows; returns the entry of parity.json.

    `tolerance`: see LogitFigures. Raises ParityError if they differ by more, and not by rounding.
    """
    figures = LogitFigures()
    for tokens in batch:
        figures.add(ours.logits(tokens), theirs(tokens).logits)
    found = figures.of(tolerance)
    if not found["max_difference"] <= found["allowed"]:  # NaN is not less
        exact = copy.deepcopy(ours).double()
        for tokens in batch:
            kept = before_ties(ours, tokens)
            a, b = ours.logits(tokens)[kept], theirs(tokens).logits[kept]
            reference = functools.partial(_kept_logits, exact, tokens, kept)
            if kept.any() and not rounding.compare(a, b, found["allowed"], reference).passed:
                raise ParityError(
                    "logits differ by {max_difference:.3g}, allowed {allowed:.3g}: the whole model".format(**found)
                )
    return found


def _kept_logits(model: Transformer, tokens: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    return model.logits(tokens)[kept]


def before_ties(model: Transformer, tokens: torch.Tensor) -> torch.Tensor:
    """True for the tokens of a row before the first one whose experts rounding decides: bool [B, L], int64 [B, L].

    Another choice changes that token and those after it by more than rounding. In a dense model all are True.
    """
    if model.recipe.router is None:
        return torch.ones(tokens.shape, dtype=torch.bool)
    margins = [choice_margins(p, model.recipe.router.experts_per_token) for p in model.base_model(tokens)[1]]
    is_tie = torch.stack(margins).amin(0) <= TIE  # NaN is none
    return (~is_tie).cumprod(-1).bool()


@torch.inference_mode()
def compare_text(ours: Transformer, theirs: Any, prompts: torch.Tensor, allowed: float) -> torch.Tensor:
    """Continue `prompts` [B, L] greedily by transformers with its cache, and by ours; returns [B, L + NEW_TOKENS].

    Ours computes all tokens in one forward pass. `allowed`: the largest difference of logits; two tokens whose logits
    lie within twice of it are equally likely. Raises ParityError if ours would choose another token.
    """
    from transformers import GenerationConfig

    theirs.generation_config.eos_token_id = None  # no end of text, so that all rows have one length
    theirs.generation_config.suppress_tokens = None  # the most probable of all rows, as ours
    config = GenerationConfig(max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=0)
    generated = theirs.generate(prompts, attention_mask=torch.ones_like(prompts), generation_config=config)
    length = prompts.shape[1]
    logits = ours.logits(generated[:, :-1])[:, length - 1 :]
    chosen = logits.gather(-1, generated[:, length:, None]).squeeze(-1)
    gaps = (logits.amax(-1) - chosen) * before_ties(ours, generated[:, :-1])[:, length - 1 :]
    if not gaps.max() <= 2 * allowed:
        row, at = (~(gaps <= 2 * allowed)).nonzero()[0].tolist()
        raise ParityError(
            f"greedy text of prompt {row} diverges after {at} tokens, with logits {float(gaps[row, at]):.3g} apart"
        )
    if num_ties := int((gaps > 0).sum()):
        logger.info("greedy text has %d ties of two tokens", num_ties)
    return generated
