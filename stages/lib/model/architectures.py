"""The architectures of models and their registry. Imports no torch.

docs/extend/architecture.md lists what a new one needs.
"""

from dataclasses import dataclass
from typing import ClassVar

from stages.lib.model.model_recipe import ModelRecipe, RouterShape
from stages.lib.recipe import Variants, identity


@dataclass(frozen=True, kw_only=True)
class LlamaRecipe(ModelRecipe):
    """Llama 1 to 3 (arXiv 2302.13971, 2307.09288, 2407.21783), with the names of transformers' `LlamaConfig`."""

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


@dataclass(frozen=True, kw_only=True)
class MistralRecipe(ModelRecipe):
    """Mistral (arXiv 2310.06825): a Llama whose attention may be kept to a sliding window. Names of `MistralConfig`."""

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


MAX_EXPERTS = 1 << 17
"""The most experts of a model in all layers, for the reason of MAX_LAYERS."""


@dataclass(frozen=True, kw_only=True)
class MixtralRecipe(MistralRecipe):
    """Mixtral (arXiv 2401.04088): a sparse mixture of experts, in all else a Mistral. Names of `MixtralConfig`."""

    hf_class: ClassVar = "MixtralForCausalLM"
    fixed: ClassVar = {"hidden_act": "silu", "router_jitter_noise": 0.0}
    hf_defaults: ClassVar = {"max_position_embeddings": 131072, "num_key_value_heads": 8, "rope_theta": 1e6}

    architecture: str = identity(choices=("mixtral",))

    num_local_experts: int = identity(8, minimum=1)
    """Only mixtral: number of experts per layer. Each has feed-forward matrices of `intermediate_size`."""

    num_experts_per_tok: int = identity(2, minimum=1)
    """Only mixtral: number of experts that a token passes through; at most `num_local_experts`."""

    router_aux_loss_coef: float = identity(0.001, minimum=0)
    """Only mixtral: weight of the auxiliary loss that gives the experts of a layer the same load."""

    @property
    def router(self) -> RouterShape:
        """The routing, by which each token passes through some of the experts of each layer."""
        return RouterShape(
            num_experts=self.num_local_experts,
            experts_per_token=self.num_experts_per_tok,
            aux_loss_weight=self.router_aux_loss_coef,
        )

    def problem(self) -> str | None:
        """A sentence on the first key whose value does not fit the others, beginning with the key; None if all fit."""
        if self.num_experts_per_tok > self.num_local_experts:
            return (
                f"num_experts_per_tok must be at most num_local_experts ({self.num_local_experts}), "
                f"got {self.num_experts_per_tok}"
            )
        if self.num_hidden_layers * self.num_local_experts > MAX_EXPERTS:
            return (
                f"num_local_experts must give the model at most {MAX_EXPERTS:,} experts in its "
                f"{self.num_hidden_layers:,} layers, got {self.num_local_experts:,} per layer"
            )
        return super().problem()


@dataclass(frozen=True, kw_only=True)
class Qwen3Recipe(ModelRecipe):
    """A dense Qwen3 (arXiv 2505.09388): a Llama that normalizes each head's queries and keys; `Qwen3Config`'s names."""

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


ARCHITECTURES = Variants[ModelRecipe](
    "architecture",
    {
        "llama": LlamaRecipe,
        "mistral": MistralRecipe,
        "mixtral": MixtralRecipe,
        "qwen3": Qwen3Recipe,
    },
)
"""The architectures by the `architecture` of a recipe, `model_type` in config.json; the first one if it is missing."""
