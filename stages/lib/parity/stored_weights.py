"""A transformers model beside ours: its config, and its weights under the keys of its files.

transformers 5 joins the experts of a layer when it loads them, and takes them apart when it saves them. Both are done
here by its own functions, those of `from_pretrained` and `save_pretrained`: the keys are transformers' word, not ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch


def config_of(directory: Path) -> Any:
    """The config of an export, for models that multiply by one expert after the other.

    transformers' grouped product on the CPU refuses matrices whose rows are no multiple of 16 bytes.
    """
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(directory, experts_implementation="eager")


def stored_weights(model: Any, module: str = "") -> dict[str, torch.Tensor]:
    """{Hugging Face key: tensor} of a module of a model, by default of all."""
    from transformers.core_model_loading import revert_weight_conversion

    prefix = f"{module}." if module else ""
    state = {prefix + name: tensor for name, tensor in model.get_submodule(module).state_dict().items()}
    return revert_weight_conversion(model, state)


def fill(model: Any, tensors: Mapping[str, torch.Tensor]) -> None:
    """Give some modules of a model their weights, in CPU memory and the model's dtype. `tensors`: by Hugging Face key.

    All experts of a layer are given together.
    """
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import convert_and_load_state_dict_in_model
    from transformers.modeling_utils import LoadStateDictConfig
    from transformers.utils import logging

    logging.disable_progress_bar()
    mapping = get_model_conversion_mapping(model, add_legacy=False)
    loaded, _ = convert_and_load_state_dict_in_model(model, dict(tensors), LoadStateDictConfig(weight_mapping=mapping))
    del model._weight_conversions  # of these tensors only, and `stored_weights` would use no others
    assert not (loaded.unexpected_keys or loaded.mismatched_keys or loaded.conversion_errors), loaded


def owners(model: Any, module: str) -> dict[str, str]:
    """{Hugging Face key: name of the module directly in `module` that has the tensor}."""
    children = [name for name, _ in model.get_submodule(module).named_children()]
    return {key: child for child in children for key in stored_weights(model, f"{module}.{child}")}
