"""Mixtral (arXiv 2401.04088): a sparse mixture of experts, in all else a Mistral."""

from dataclasses import dataclass
from typing import ClassVar

from stages.lib.model.architectures.mistral import MistralRecipe
from stages.lib.model.model_recipe import RouterShape
from stages.lib.recipe import identity

MAX_EXPERTS = 1 << 17
"""The most experts of a model in all layers, for the reason of MAX_LAYERS."""


@dataclass(frozen=True, kw_only=True)
class MixtralRecipe(MistralRecipe):
    """The config of a Mixtral, with the names of transformers' `MixtralConfig`."""

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
