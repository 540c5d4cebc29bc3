"""A Llama in plain torch, with the state-dict keys of IBM's Foundation Model Stack (FMS).

    base_model.embedding.weight                        [V, D]
    base_model.layers.N.ln.weight / ff_ln.weight       [D]
    base_model.layers.N.attn.in_proj.qkv_fused.weight  [(H + 2K) * hd, D]   rows: q; k; v
    base_model.layers.N.attn.dense.weight              [D, H * hd]
    base_model.layers.N.ff_sub_layer.wg1_fused.weight  [2F, D]              rows: gate; up
    base_model.layers.N.ff_sub_layer.w2.weight         [D, F]
    base_model.dec_norm.weight ; head.weight           [D] ; [V, D]

B is the micro-batch, L the sequence length, D the width, H and K the heads of queries and of keys, hd the width of a
head, F the hidden width, V the vocabulary. RoPE is the interleaved form: neighbours 2i and 2i + 1 make one complex
number.
"""

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from stages.lib.errors import UserError
from stages.lib.model.attention import attend, mask_of
from stages.lib.model.loss import chunked_cross_entropy
from stages.lib.recipe import identity


@dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """The frequencies' scaling of Llama 3.1 (`rope_type: llama3`), as in transformers' `modeling_rope_utils`."""

    factor: float = identity(above=0)
    """By how much the low frequencies are slowed down."""

    low_freq_factor: float = identity(1.0, above=0)
    """Wavelengths over `original_max_position_embeddings / low_freq_factor` are slowed down wholly."""

    high_freq_factor: float = identity(4.0, above=0)
    """Wavelengths under `original_max_position_embeddings / high_freq_factor` stay as they are."""

    original_max_position_embeddings: int = identity(8192, minimum=1)
    """The positions for which the model was trained before the scaling."""

    def check(self, where):
        """Raise UserError where the two factors leave no band between them."""
        if self.high_freq_factor <= self.low_freq_factor:
            raise UserError(
                f"{where}.high_freq_factor must be greater than low_freq_factor "
                f"({self.low_freq_factor}), got {self.high_freq_factor}"
            )


@dataclass(frozen=True, kw_only=True)
class ModelRecipe:
    """The shape of a Llama."""

    num_hidden_layers: int = identity(minimum=1)
    """Number of transformer blocks."""

    hidden_size: int = identity(minimum=2)
    """Width of the residual stream."""

    num_attention_heads: int = identity(minimum=1)
    """Number of attention heads; divides `hidden_size` into heads of an even width."""

    num_key_value_heads: int | None = identity(None, minimum=1)
    """Number of heads of keys and values; divides `num_attention_heads`. Default: as many."""

    intermediate_size: int = identity(minimum=1)
    """Inner width of the feed-forward layer."""

    tie_word_embeddings: bool = identity(False)
    """Whether the output head is the embedding itself."""

    rope_theta: float = identity(10000.0, above=0)
    """Base of the rotary position embedding."""

    rope_scaling: RopeScaling | None = identity(None)
    """Scaling of the rotary frequencies in the manner of Llama 3.1. Default: none."""

    rms_norm_eps: float = identity(1e-5, above=0)
    """The epsilon of RMSNorm."""

    max_position_embeddings: int = identity(4096, minimum=1)
    """The longest sequence that the exported model declares, in tokens; at least `seq_len`."""

    initializer_range: float = identity(0.02, above=0)
    """Standard deviation of the initial weights; the two matrices that feed the residual stream get 1/sqrt(2 *
    num_hidden_layers) of it."""

    @property
    def head_dim(self):
        """Width of one head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def kv_heads(self):
        """Number of heads of keys and values, the default filled in."""
        return self.num_key_value_heads or self.num_attention_heads

    def check(self, where):
        """Raise UserError where heads, width and kv_heads do not fit."""
        if self.hidden_size % (2 * self.num_attention_heads):
            raise UserError(
                f"{where}.num_attention_heads must divide hidden_size ({self.hidden_size}) into heads of an even "
                f"width, got {self.num_attention_heads}"
            )
        if self.num_attention_heads % self.kv_heads:
            raise UserError(
                f"{where}.num_key_value_heads must divide num_attention_heads ({self.num_attention_heads}), "
                f"got {self.num_key_value_heads}"
            )


def documents_of(tokens, eos):
    """The number of the document that each token is of, int64 [B, L], counted anew in each row.

    `tokens`: int64 [B, L]. `eos` ends its document and is a part of it; None where documents are not kept apart, which
    gives None.
    """
    if eos is None:
        return None
    ends = (tokens == eos).long()
    return ends.cumsum(1) - ends


def rotary_frequencies(recipe):
    """The angle per position of each pair of a head, float64 [hd / 2] (RoFormer, arXiv 2104.09864)."""
    exponents = torch.arange(0, recipe.head_dim, 2, dtype=torch.float64) / recipe.head_dim
    frequencies = recipe.rope_theta**-exponents
    scaling = recipe.rope_scaling
    if scaling is None:
        return frequencies
    turns = scaling.original_max_position_embeddings * frequencies / (2 * math.pi)
    smooth = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    smooth = smooth.clamp(0, 1)
    return (1 - smooth) * frequencies / scaling.factor + smooth * frequencies


def apply_rotary_emb(x, cosine, sine):
    """Turn pairs of `x` [B, L, heads, hd] by the angles of `cosine` and `sine` [L, 1, hd / 2]; same dtype as `x`."""
    even, odd = x.to(cosine.dtype).unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack([even * cosine - odd * sine, odd * cosine + even * sine], -1).flatten(-2).type_as(x)


class FusedProjection(nn.Module):
    """The projection to queries, keys and values in one matrix."""

    def __init__(self, width, rows):
        super().__init__()
        self.qkv_fused = nn.Linear(width, rows, bias=False)

    def forward(self, x):
        """[B, L, D] -> [B, L, (H + 2K) * hd]."""
        return self.qkv_fused(x)


class Attention(nn.Module):
    """Causal attention with grouped keys and values."""

    def __init__(self, recipe):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = recipe.num_attention_heads, recipe.kv_heads, recipe.head_dim
        self.in_proj = FusedProjection(recipe.hidden_size, (self.heads + 2 * self.kv_heads) * self.head_dim)
        self.dense = nn.Linear(self.heads * self.head_dim, recipe.hidden_size, bias=False)

    def project(self, x, cosine, sine):
        """[B, L, D] -> queries [B, H, L, hd], keys and values [B, K, L, hd]; queries and keys are rotated."""
        fused = self.in_proj(x).unflatten(-1, (-1, self.head_dim))
        q, k, v = fused.split([self.heads, self.kv_heads, self.kv_heads], dim=2)
        q, k = apply_rotary_emb(q, cosine, sine), apply_rotary_emb(k, cosine, sine)
        return tuple(heads.transpose(1, 2) for heads in (q, k, v))

    def forward(self, x, cosine, sine, mask=None):
        """[B, L, D] -> [B, L, D]. `mask`: as `attention.mask_of` gives it."""
        q, k, v = self.project(x, cosine, sine)
        mixed = attend(q, k, v, mask)
        return self.dense(mixed.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """SwiGLU (arXiv 2002.05202): w2(silu(gate) * up)."""

    def __init__(self, recipe):
        super().__init__()
        self.wg1_fused = nn.Linear(recipe.hidden_size, 2 * recipe.intermediate_size, bias=False)
        self.w2 = nn.Linear(recipe.intermediate_size, recipe.hidden_size, bias=False)

    def forward(self, x):
        """[B, L, D] -> [B, L, D]."""
        gate, up = self.wg1_fused(x).chunk(2, dim=-1)
        return self.w2(functional.silu(gate) * up)


class Block(nn.Module):
    """One transformer block: attention and feed-forward, each behind an RMSNorm and beside a residual."""

    def __init__(self, recipe):
        super().__init__()
        self.ln = nn.RMSNorm(recipe.hidden_size, eps=recipe.rms_norm_eps)
        self.attn = Attention(recipe)
        self.ff_ln = nn.RMSNorm(recipe.hidden_size, eps=recipe.rms_norm_eps)
        self.ff_sub_layer = FeedForward(recipe)

    def forward(self, x, cosine, sine, mask=None):
        """[B, L, D] -> [B, L, D]. `mask`: as `attention.mask_of` gives it."""
        x = x + self.attn(self.ln(x), cosine, sine, mask)
        return x + self.ff_sub_layer(self.ff_ln(x))


class Trunk(nn.Module):
    """Embedding, blocks and the last norm."""

    def __init__(self, recipe, vocab_size):
        super().__init__()
        self.recipe = recipe
        self.embedding = nn.Embedding(vocab_size, recipe.hidden_size)
        self.layers = nn.ModuleList(Block(recipe) for _ in range(recipe.num_hidden_layers))
        self.dec_norm = nn.RMSNorm(recipe.hidden_size, eps=recipe.rms_norm_eps)

    def hidden_states(self, tokens, documents=None):
        """Yield what enters the first block, then what leaves each block: [B, L, D] each.

        `tokens`, `documents`: int64 [B, L].
        """
        mask = mask_of(documents)
        cosine, sine = self.rotation(torch.arange(tokens.shape[1]), tokens.device)
        x = self.embedding(tokens)
        yield x
        for block in self.layers:
            x = block(x, cosine, sine, mask)
            yield x

    def forward(self, tokens, documents=None):
        """int64 [B, L] -> [B, L, D], normed."""
        for x in self.hidden_states(tokens, documents):
            last = x
        return self.dec_norm(last)

    def rotation(self, positions, device):
        """Cosines and sines [positions, 1, hd / 2] of the angles at some positions (an int64 CPU tensor)."""
        # made anew in each forward: a buffer would have to survive meta initialisation and a change of dtype
        angles = torch.outer(positions.double(), rotary_frequencies(self.recipe)).unsqueeze(1)
        precision = torch.promote_types(self.embedding.weight.dtype, torch.float32)
        return [table.to(device, precision) for table in (angles.cos(), angles.sin())]


class Llama(nn.Module):
    """The language model; its forward is the loss, so that the head's weight is used inside FSDP's root module."""

    def __init__(self, recipe, vocab_size):
        super().__init__()
        self.recipe, self.vocab_size = recipe, vocab_size
        self.base_model = Trunk(recipe, vocab_size)
        self.head = nn.Linear(recipe.hidden_size, vocab_size, bias=False)
        if recipe.tie_word_embeddings:
            self.head.weight = self.base_model.embedding.weight

    def forward(self, tokens, targets, documents=None, z_loss=0.0):
        """(cross_entropy, penalty), summed over the targets that are not -100: scalars of at least float32.

        cross_entropy is the sum of -ln p(target), penalty that of z_loss * logsumexp(logits)^2; their sum is what has a
        gradient. `tokens`, `targets`: int64 [B, L]. `documents`: int64 [B, L], the number of each token's document, as
        `documents_of` gives it: tokens attend only to their own. Default: a row is one document.
        """
        hidden = self.base_model(tokens, documents)
        return chunked_cross_entropy(hidden.flatten(0, 1), self.head.weight, targets.flatten(), z_loss)

    def logits(self, tokens):
        """int64 [B, L] -> [B, L, V]. Not for a sharded model: FSDP gathers weights in `forward` only."""
        return self.head(self.base_model(tokens))
