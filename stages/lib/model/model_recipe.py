"""The config of a model: the keys that all architectures share. Imports no torch.

An architecture is a subclass in `architectures.py` with its own keys and what it tells the Transformer; a recipe is
read with `architectures.ARCHITECTURES`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from stages.lib.errors import UserError
from stages.lib.recipe import identity

MAX_LAYERS = 10_000
"""The most layers of a model: each is listed before anything is compared or allocated."""


@dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """The frequencies' scaling of Llama 3.1 (`rope_type: llama3`), as in transformers' `modeling_rope_utils`."""

    rope_type: str = identity("llama3", choices=("llama3",))
    """The kind of scaling, as in a Hugging Face config."""

    factor: float = identity(above=0)
    """The factor by which the low frequencies are divided."""

    low_freq_factor: float = identity(1.0, above=0)
    """Wavelengths over `original_max_position_embeddings / low_freq_factor` are scaled by the whole factor."""

    high_freq_factor: float = identity(4.0, above=0)
    """Wavelengths under `original_max_position_embeddings / high_freq_factor` are not scaled."""

    original_max_position_embeddings: int = identity(8192, minimum=1)
    """The number of positions for which the model was trained before the scaling."""

    def check(self, where: str) -> None:
        """Raise UserError if the two factors leave no band between them."""
        if self.high_freq_factor <= self.low_freq_factor:
            raise UserError(
                f"{where}.high_freq_factor must be greater than low_freq_factor "
                f"({self.low_freq_factor}), got {self.high_freq_factor}"
            )


@dataclass(frozen=True, kw_only=True)
class RouterShape:
    """The routing of a sparse model, by which each token passes through some of the experts of each layer."""

    num_experts: int
    """Number of experts per layer."""

    experts_per_token: int
    """Number of experts that a token passes through."""

    aux_loss_weight: float
    """Weight of the auxiliary loss that balances the experts' load, see `experts.routing`."""


@dataclass(frozen=True, kw_only=True)
class ModelRecipe:
    """The config of a model, with the names of transformers' configs."""

    hf_class: ClassVar[str]
    """transformers' class, `architectures` in config.json."""

    fixed: ClassVar[dict[str, Any]] = {"hidden_act": "silu"}
    """Further keys of config.json for which the architecture supports one value."""

    hf_defaults: ClassVar[dict[str, Any]]
    """Values that transformers takes for keys missing in a config.json, if it differs from this recipe's defaults."""

    architecture: str = identity()
    """The architecture, transformers' `model_type`. The keys of other architectures are refused."""

    num_hidden_layers: int = identity(minimum=1)
    """Number of transformer blocks."""

    hidden_size: int = identity(minimum=2)
    """Width of the residual stream."""

    num_attention_heads: int = identity(minimum=1)
    """Number of attention heads."""

    num_key_value_heads: int | None = identity(None, minimum=1)
    """Number of key-value heads; divides `num_attention_heads`. Default: as many."""

    head_dim: int | None = identity(None, minimum=2)
    """Dimension of a head, an even number. Default: `hidden_size / num_attention_heads`."""

    intermediate_size: int = identity(minimum=1)
    """Inner width of the feed-forward layer."""

    tie_word_embeddings: bool = identity(False)
    """Use the embedding as the output head."""

    rope_theta: float = identity(10000.0, above=0)
    """Base of the rotary position embedding."""

    rope_scaling: RopeScaling | None = identity(None)
    """Scaling of the rotary frequencies as in Llama 3.1. Default: none."""

    rms_norm_eps: float = identity(1e-5, above=0)
    """The epsilon of RMSNorm."""

    max_position_embeddings: int = identity(4096, minimum=1)
    """The longest sequence that the exported model declares, in tokens; at least `seq_len`."""

    initializer_range: float = identity(0.02, above=0)
    """Standard deviation of the initial weights; the two matrices that feed the residual stream get 1/sqrt(2 *
    num_hidden_layers) of it."""

    @property
    def head_size(self) -> int:
        """Dimension of a head, with the default filled in."""
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def kv_heads(self) -> int:
        """Number of key-value heads, with the default filled in."""
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def has_attention_bias(self) -> bool:
        """True if the projections of attention add a bias."""
        return False

    @property
    def has_qk_norm(self) -> bool:
        """True if each head's queries and keys pass an RMSNorm before RoPE."""
        return False

    @property
    def window(self) -> int | None:
        """Number of tokens, itself included, to which a token attends; None for all before it."""
        return None

    @property
    def router(self) -> RouterShape | None:
        """The routing of a sparse model; None if every token passes through one feed-forward layer."""
        return None

    def problem(self) -> str | None:
        """A sentence on the first key whose value does not fit the others, beginning with the key; None if all fit."""
        if self.num_hidden_layers > MAX_LAYERS:
            return f"num_hidden_layers must be at most {MAX_LAYERS:,}, got {self.num_hidden_layers:,}"
        if self.head_dim is None and self.hidden_size % (2 * self.num_attention_heads):
            return (
                f"num_attention_heads must divide hidden_size ({self.hidden_size}) into heads of an even dimension, "
                f"got {self.num_attention_heads}; or set head_dim"
            )
        if self.head_size % 2:
            return f"head_dim must be an even number, got {self.head_dim}"
        if self.num_attention_heads % self.kv_heads:
            return (
                f"num_key_value_heads must divide num_attention_heads ({self.num_attention_heads}), "
                f"got {self.num_key_value_heads}"
            )
        return None

    def check(self, where: str) -> None:
        """Raise UserError if a key does not fit the others."""
        if problem := self.problem():
            raise UserError(f"{where}.{problem}")
