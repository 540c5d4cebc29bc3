"""The registry of architectures. Imports no torch.

docs/extend/architecture.md lists what a new one needs beside an entry here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stages.lib.model.model_recipe import ModelRecipe

if TYPE_CHECKING:
    from stages.lib.model.transformer import Transformer


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A kind of model, in our code and in transformers."""

    model_type: str
    """transformers' name of it, `model_type` in config.json."""

    hf_class: str
    """transformers' class, `architectures` in config.json."""

    config_class: type[ModelRecipe]
    """The config; its `key_table` gives the tensors with their names and shapes, from which all counts follow."""

    load_class: Callable[[], type[Transformer]]
    """Import the class of the model and return it. Built from a config and a vocabulary size, its `forward` gives the
    loss, its `logits` the logits."""

    fixed: dict[str, Any]
    """Further keys of config.json for which the model supports one value."""

    projections: tuple[str, ...]
    """The last names of the linear layers' modules in transformers, without the output head: the targets of LoRA."""

    @property
    def model_class(self) -> type[Transformer]:
        """The class of the model."""
        return self.load_class()


def _llama() -> type[Transformer]:
    from stages.lib.model.transformer import Transformer

    return Transformer


LLAMA = Architecture(
    model_type="llama",
    hf_class="LlamaForCausalLM",
    config_class=ModelRecipe,
    load_class=_llama,
    fixed={"hidden_act": "silu", "attention_bias": False, "mlp_bias": False},
    projections=("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
)

ARCHITECTURES = {architecture.model_type: architecture for architecture in (LLAMA,)}

DEFAULT = LLAMA
"""The architecture of recipes, commits and config.json files that name none."""


def architecture_of(model_config: ModelRecipe) -> Architecture:
    """The architecture of a config, by its class."""
    (found,) = (known for known in ARCHITECTURES.values() if known.config_class is type(model_config))
    return found
