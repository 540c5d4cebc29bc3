"""Mistral (arXiv 2310.06825): a Llama whose attention may be kept to a sliding window."""

from dataclasses import dataclass
from typing import ClassVar

from stages.lib.model.model_recipe import ModelRecipe
from stages.lib.recipe import identity


@dataclass(frozen=True, kw_only=True)
class MistralRecipe(ModelRecipe):
    """The config of a Mistral, with the names of transformers' `MistralConfig`."""

    hf_class: ClassVar = "MistralForCausalLM"
    hf_defaults: ClassVar = {
        **{"rms_norm_eps": 1e-6, "max_position_embeddings": 131072, "num_key_value_heads": 8, "sliding_window": 4096}
    }

    architecture: str = identity(choices=("mistral",))

    sliding_window: int | None = identity(None, minimum=1)
    """Only mistral and mixtral: number of tokens, itself included, to which a token attends. Default: all
    before it."""

    @property
    def window(self) -> int | None:
        """Number of tokens, itself included, to which a token attends; None for all before it."""
        return self.sliding_window
