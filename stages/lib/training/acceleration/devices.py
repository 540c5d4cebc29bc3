"""The check of this machine's device, before a training writes anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from stages.lib.errors import UserError
from stages.lib.training.acceleration import requirements

if TYPE_CHECKING:
    from stages.lib.training.settings.recipe import TrainRecipe


def check_device(recipe: TrainRecipe, where: str, device: torch.device) -> None:
    """Raise UserError if `float8` or `cuda_graphs` is true and the device cannot do it."""
    is_nvidia = device.type == "cuda" and torch.version.hip is None
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "a CPU"
    capability = torch.cuda.get_device_capability(device) if is_nvidia else None
    requirements.check_float8_device(recipe, where, name, capability)
    if recipe.cuda_graphs and not is_nvidia:
        raise UserError(f"{where}.cuda_graphs requires an NVIDIA GPU, got {name}")
