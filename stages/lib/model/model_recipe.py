"""The config and the key table of a Llama. Imports no torch.

    base_model.embedding.weight                        [V, D]
    base_model.layers.N.ln.weight / ff_ln.weight       [D]
    base_model.layers.N.attn.in_proj.qkv_fused.weight  [(H + 2K) * hd, D]   rows: q; k; v
    base_model.layers.N.attn.dense.weight              [D, H * hd]
    base_model.layers.N.ff_sub_layer.wg1_fused.weight  [2F, D]              rows: gate; up
    base_model.layers.N.ff_sub_layer.w2.weight         [D, F]
    base_model.dec_norm.weight ; head.weight           [D] ; [V, D]

V is the vocabulary size, D the hidden size, H and K the numbers of attention heads and of key-value heads, hd the head
dimension, F the intermediate size.
"""

from dataclasses import dataclass

from stages.lib.errors import UserError
from stages.lib.model.keys import KeyTable, Part, Weight
from stages.lib.recipe import identity


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
class ModelRecipe:
    """The config of a Llama, with the names of transformers' `LlamaConfig`."""

    num_hidden_layers: int = identity(minimum=1)
    """Number of transformer blocks."""

    hidden_size: int = identity(minimum=2)
    """Width of the residual stream."""

    num_attention_heads: int = identity(minimum=1)
    """Number of attention heads; divides `hidden_size` into heads of an even dimension."""

    num_key_value_heads: int | None = identity(None, minimum=1)
    """Number of key-value heads; divides `num_attention_heads`. Default: as many."""

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
    def head_dim(self) -> int:
        """Dimension of one head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def kv_heads(self) -> int:
        """Number of key-value heads, with the default filled in."""
        return self.num_key_value_heads or self.num_attention_heads

    def check(self, where: str) -> None:
        """Raise UserError if the numbers of heads and the hidden size do not fit together."""
        if self.hidden_size % (2 * self.num_attention_heads):
            raise UserError(
                f"{where}.num_attention_heads must divide hidden_size ({self.hidden_size}) into heads of an even "
                f"dimension, got {self.num_attention_heads}"
            )
        if self.num_attention_heads % self.kv_heads:
            raise UserError(
                f"{where}.num_key_value_heads must divide num_attention_heads ({self.num_attention_heads}), "
                f"got {self.num_key_value_heads}"
            )

    def key_table(self, vocab_size: int) -> KeyTable:
        """The tensors of the model with an embedding of `vocab_size` rows."""
        hidden_size, numbers = self.hidden_size, range(self.num_hidden_layers)
        return KeyTable(
            embedding=_weight("base_model.embedding", ("model.embed_tokens", vocab_size), columns=hidden_size),
            layers=tuple(self._layer(f"base_model.layers.{number}.", f"model.layers.{number}.") for number in numbers),
            final_norm=_weight("base_model.dec_norm", ("model.norm", hidden_size)),
            head=_weight("head", ("lm_head", vocab_size), columns=hidden_size),
            tied=self.tie_word_embeddings,
            layer_modules=tuple(f"model.layers.{number}" for number in numbers),
        )

    def _layer(self, fms: str, hf: str) -> tuple[Weight, ...]:
        """The weights of a layer, in the order of its forward pass, by the prefixes of its keys."""
        hidden_size, intermediate_size = self.hidden_size, self.intermediate_size
        q_rows, kv_rows = self.num_attention_heads * self.head_dim, self.kv_heads * self.head_dim
        query = (hf + "self_attn.q_proj", q_rows, self.num_attention_heads)
        key = (hf + "self_attn.k_proj", kv_rows, self.kv_heads)
        value = (hf + "self_attn.v_proj", kv_rows)
        gate, up = (hf + "mlp.gate_proj", intermediate_size), (hf + "mlp.up_proj", intermediate_size)
        down = (hf + "mlp.down_proj", hidden_size)
        return (
            _weight(fms + "ln", (hf + "input_layernorm", hidden_size)),
            _weight(fms + "attn.in_proj.qkv_fused", query, key, value, columns=hidden_size),
            _weight(fms + "attn.dense", (hf + "self_attn.o_proj", hidden_size), columns=q_rows, into_residual=True),
            _weight(fms + "ff_ln", (hf + "post_attention_layernorm", hidden_size)),
            _weight(fms + "ff_sub_layer.wg1_fused", gate, up, columns=hidden_size),
            _weight(fms + "ff_sub_layer.w2", down, columns=intermediate_size, into_residual=True),
        )


def _weight(
    key: str, *parts: tuple[str, int] | tuple[str, int, int], columns: int | None = None, into_residual: bool = False
) -> Weight:
    """A Weight by keys without `.weight`; a part is (name, rows) or (name, rows, rotary heads)."""
    made = tuple(
        Part(name=name + ".weight", rows=rows, rotary_heads=next(iter(more), None)) for name, rows, *more in parts
    )
    return Weight(key=key + ".weight", parts=made, columns=columns, into_residual=into_residual)
