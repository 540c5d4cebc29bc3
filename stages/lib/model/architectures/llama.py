"""Llama 1 to 3 (arXiv 2302.13971, 2307.09288, 2407.21783), and all models that call themselves so."""

from dataclasses import dataclass
from typing import ClassVar

from stages.lib.model.model_recipe import ModelRecipe
from stages.lib.recipe import identity


@dataclass(frozen=True, kw_only=True)
class LlamaRecipe(ModelRecipe):
    """The config of a Llama, with the names of transformers' `LlamaConfig`."""

    hf_class: ClassVar = "LlamaForCausalLM"
    fixed: ClassVar = {"hidden_act": "silu", "mlp_bias": False}
    hf_defaults: ClassVar = {"rms_norm_eps": 1e-6, "max_position_embeddings": 2048}

    architecture: str = identity("llama", choices=("llama",))

    attention_bias: bool = identity(False)
    """Only llama: add a bias to the four projections of attention."""

    @property
    def has_attention_bias(self) -> bool:
        """True if the projections of attention add a bias."""
        return self.attention_bias

    def problem(self) -> str | None:
        """A sentence on the first key whose value does not fit the others, see ModelRecipe."""
        problem = super().problem()
        if problem is None and self.hidden_size % self.num_attention_heads:  # LlamaConfig refuses it with head_dim, too
            return f"num_attention_heads must divide hidden_size ({self.hidden_size}), got {self.num_attention_heads}"
        return problem
