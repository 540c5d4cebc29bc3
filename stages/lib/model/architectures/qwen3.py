"""Qwen3 (arXiv 2505.09388): a Llama that normalizes each head's queries and keys."""

from dataclasses import dataclass
from typing import ClassVar

from stages.lib.model.model_recipe import ModelRecipe
from stages.lib.recipe import identity


@dataclass(frozen=True, kw_only=True)
class Qwen3Recipe(ModelRecipe):
    """The config of a dense Qwen3, with the names of transformers' `Qwen3Config`."""

    hf_class: ClassVar = "Qwen3ForCausalLM"
    fixed: ClassVar = {"hidden_act": "silu", "attention_bias": False, "use_sliding_window": False}
    hf_defaults: ClassVar = {
        **{"rms_norm_eps": 1e-6, "max_position_embeddings": 32768, "num_key_value_heads": 32, "head_dim": 128}
    }

    architecture: str = identity(choices=("qwen3",))

    @property
    def has_qk_norm(self) -> bool:
        """True if each head's queries and keys pass an RMSNorm before RoPE."""
        return True
