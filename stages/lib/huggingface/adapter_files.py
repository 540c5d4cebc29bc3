"""LoRA adapters in peft's format: adapter_config.json and adapter_model.safetensors.

They lie in a folder of their own, not beside an export's config.json: transformers would load a directory that has an
adapter_config.json as the base with the adapters, and never read the weights there.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from stages.lib import files
from stages.lib.huggingface.export import pairs_to_halves
from stages.lib.model.key_table import KeyTable, Part
from stages.lib.model.lora import MATRICES, adapted_weights, adapter_key
from stages.lib.model.lora_recipe import LoraRecipe

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"

ReadAdapters = Callable[[Sequence[str]], Mapping[str, torch.Tensor]]
"""Keys of adapters (lora.adapter_key) -> {key: tensor}."""


def config_of(table: KeyTable, recipe: LoraRecipe, base: str) -> dict[str, Any]:
    """The content of adapter_config.json. `table`, `base`: of the base model, its name or path."""
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": recipe.rank,
        "lora_alpha": int(recipe.alpha) if recipe.alpha.is_integer() else recipe.alpha,
        "lora_dropout": recipe.dropout,
        "target_modules": recipe.targets_of(table),
        "bias": "none",
        "fan_in_fan_out": False,
        "use_rslora": False,
        "use_dora": False,
        "inference_mode": True,
    }


def peft_tensors(table: KeyTable, recipe: LoraRecipe, read: ReadAdapters) -> dict[str, torch.Tensor]:
    """{peft's key: tensor} of all adapters. The rows of lora_B are those of transformers' matrix."""
    made = {}
    for weight in adapted_weights(table, recipe):
        for part in weight.parts:
            if part.projection in recipe.targets:
                keys = [adapter_key(weight, part, matrix) for matrix in MATRICES]
                a, b = (tensor.contiguous() for tensor in map(read(keys).__getitem__, keys))
                made[_peft_key(part, "lora_A")] = a
                made[_peft_key(part, "lora_B")] = (
                    b if part.rotary_heads is None else pairs_to_halves(b, part.rotary_heads)
                )
    return made


def _peft_key(part: Part, matrix: str) -> str:
    return f"base_model.model.{part.module}.{matrix}.weight"


def write(folder: Path, table: KeyTable, recipe: LoraRecipe, read: ReadAdapters, base: str) -> None:
    """Write the adapters into a new folder."""
    from safetensors.torch import save_file

    folder.mkdir()
    save_file(peft_tensors(table, recipe, read), folder / ADAPTER_WEIGHTS, {"format": "pt"})
    files.write_json(folder / ADAPTER_CONFIG, config_of(table, recipe, base))
