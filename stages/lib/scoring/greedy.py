"""Greedy continuations of prompts by a model of transformers, each up to EOS."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


@torch.inference_mode()
def continuations(model: Any, prompts: Sequence[Sequence[int]], max_new_tokens: int, eos: int) -> list[list[int]]:
    """Return the ids that follow each prompt, at most `max_new_tokens`; EOS is the last one of those that ended."""
    longest = max(map(len, prompts))
    padded = [[eos] * (longest - len(prompt)) + list(prompt) for prompt in prompts]
    seen = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    made = model.generate(
        input_ids=torch.tensor(padded, device=model.device),
        attention_mask=torch.tensor(seen, device=model.device),
        max_new_tokens=max_new_tokens,
        do_sample=False,
        eos_token_id=eos,
        pad_token_id=eos,
    )
    return [_up_to(row[longest:], eos) for row in made.tolist()]


def _up_to(ids: list[int], eos: int) -> list[int]:
    return ids[: ids.index(eos) + 1] if eos in ids else ids
