"""Parameter groups of optimizers, and their learning rate."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch

LR_RATIO = "lr_ratio"
"""Key of a group whose learning rate is this multiple of the recipe's."""


def decay_groups(parameters: Iterable[torch.nn.Parameter], weight_decay: float) -> list[dict[str, Any]]:
    """Return the group of matrices, which decay, and that of vectors, which do not."""
    listed = list(parameters)
    return [
        {"params": [p for p in listed if p.dim() > 1], "weight_decay": weight_decay},
        {"params": [p for p in listed if p.dim() <= 1], "weight_decay": 0.0},
    ]


def set_learning_rate(groups: Sequence[dict[str, Any]], learning_rate: float) -> None:
    """Set the learning rate of the next step."""
    for group in groups:
        group["lr"] = learning_rate * group.get(LR_RATIO, 1.0)
