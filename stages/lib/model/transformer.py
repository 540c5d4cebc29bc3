"""The model in plain torch, with the state-dict keys of IBM's Foundation Model Stack (FMS) that key_table.py lists.

One class serves all architectures: its config, a subclass of ModelRecipe, tells in which points they differ. Attention
is causal, within documents if a row holds several, and within a sliding window if the model has one.

B is the micro-batch size, L the sequence length, T the number of keys, D the hidden size, H and K the numbers of
attention heads and of key-value heads, hd the head dimension, E the number of experts, V the vocabulary size. RoPE is
the interleaved form: neighbours 2i and 2i + 1 make one complex number.
"""

from __future__ import annotations

import inspect
import math
from typing import Any, NamedTuple, Protocol, TypeAlias, cast

import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import varlen

from stages.lib import vector_math
from stages.lib.model.experts import Routing, SparseFeedForward, routing
from stages.lib.model.loss import chunked_cross_entropy, chunked_log_probs
from stages.lib.model.model_recipe import ModelRecipe


class Segments(NamedTuple):
    """The documents of a batch, one after another: the mask of attention by FlashAttention-2 for lengths that vary."""

    ends: torch.Tensor
    """int32 [documents + 1], from 0 to B * L."""

    longest: int
    """At least the length of each."""

    window: int | None
    """Number of tokens, itself included, to which a token attends."""


Mask: TypeAlias = torch.Tensor | Segments | None
"""None: a token attends to itself and all tokens before it."""

NAMES_GROUPS = "enable_gqa" in inspect.signature(varlen.varlen_attn).parameters
"""False before torch 2.13: queries may share a key without an option."""


def mask_of(x: torch.Tensor, head_size: int, documents: torch.Tensor | None = None, window: int | None = None) -> Mask:
    """The mask of attention in a batch of embeddings `x` [B, L, D]; None if each attends to itself and all before it.

    `documents`: int64 [B, L], ascending, the number of each token's document, to which its attention is kept. `window`:
    the number of tokens, itself included, to which attention is kept. Segments on a GPU in bfloat16, an exact mask
    elsewhere.
    """
    if window is not None and window >= x.shape[1]:
        window = None
    if documents is None and window is None:
        return None
    has_kernel = x.device.type == "cuda" and kernel_takes(x.dtype, head_size)
    return (segments if has_kernel else exact_mask)(x, documents, window)


def kernel_takes(dtype: torch.dtype, head_size: int) -> bool:
    """True if FlashAttention-2 is for this dtype and head size. A GPU without it has no bfloat16 either."""
    return dtype in (torch.bfloat16, torch.float16) and head_size % 8 == 0 and head_size <= 256


def exact_mask(x: torch.Tensor, documents: torch.Tensor | None = None, window: int | None = None) -> torch.Tensor:
    """Bool [B or 1, 1, L, L], true if a query (dimension 2) attends to a key (dimension 3)."""
    length = x.shape[1]
    seen = torch.ones(1, length, length, dtype=torch.bool, device=x.device)
    if documents is not None:
        seen = documents.unsqueeze(2) == documents.unsqueeze(1)
    seen = seen.tril()
    return (seen if window is None else seen.triu(1 - window)).unsqueeze(1)


def segments(x: torch.Tensor, documents: torch.Tensor | None = None, window: int | None = None) -> Segments:
    """The same as Segments; the host waits for the device."""
    rows, length = x.shape[:2]
    begins = torch.zeros(rows, length, dtype=torch.bool, device=x.device)
    begins[:, 0] = True
    if documents is not None:
        begins[:, 1:] = documents[:, 1:] != documents[:, :-1]
    ends = nn.functional.pad(begins.flatten().nonzero().flatten(), (0, 1), value=rows * length).int()
    torch._dynamo.maybe_mark_dynamic(ends, 0)  # so that no other number of documents compiles the blocks again
    # the kernel looks at as many tokens of each document; a power of two, since another number may compile them again
    longest = min(length, 1 << (int(ends.diff().max()) - 1).bit_length())
    return Segments(ends, longest, window)


def attend(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: Mask = None) -> torch.Tensor:
    """Scaled dot-product attention: [B, H, L, hd], and twice [B, K, T, hd] -> [B, H, L, hd].

    T is L, or L is 1: the last of T tokens then attends to all of them. `mask`: see mask_of.
    """
    grouped, length = queries.shape[1] != keys.shape[1], queries.shape[2]
    if isinstance(mask, Segments):
        q, k, v = (t.transpose(1, 2).flatten(0, 1) for t in (queries, keys, values))
        options: dict[str, Any] = {"window_size": (-1 if mask.window is None else mask.window - 1, 0)}
        options |= {"enable_gqa": grouped} if NAMES_GROUPS else {}
        mixed = varlen.varlen_attn(q, k, v, mask.ends, mask.ends, mask.longest, mask.longest, **options)
        return cast(torch.Tensor, mixed).unflatten(0, (-1, length)).transpose(1, 2)
    if grouped and mask is not None and length > 1 and queries.device.type == "cuda":  # else all scores are in memory
        keys, values = (t.repeat_interleave(queries.shape[1] // t.shape[1], 1) for t in (keys, values))
        grouped = False
    causal = mask is None and length == keys.shape[2]
    return functional.scaled_dot_product_attention(queries, keys, values, mask, is_causal=causal, enable_gqa=grouped)


vector_math.choose_kernels()


class LayerCache(Protocol):
    """The keys and values of a layer at the positions that were computed before."""

    def append(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Add keys and values [B, K, L, hd], and return those of all positions [B, K, T, hd]."""
        ...


def documents_of(tokens: torch.Tensor, eos: int | None) -> torch.Tensor | None:
    """The number of each token's document, int64 [B, L], counted from 0 in each row.

    `tokens`: int64 [B, L]. `eos` ends its document and is a part of it. If `eos` is None, documents are not kept apart,
    and the result is None.
    """
    if eos is None:
        return None
    ends = (tokens == eos).long()
    return ends.cumsum(1) - ends


def rotary_frequencies(recipe: ModelRecipe) -> torch.Tensor:
    """The angle per position of each pair of a head, float32 [hd / 2] (RoFormer, arXiv 2104.09864).

    Each operation is that of transformers' `modeling_rope_utils`: at long positions one rounding more or less moves
    sharp attention.
    """
    exponents = torch.arange(0, recipe.head_size, 2, dtype=torch.float32) / recipe.head_size
    frequencies = 1.0 / recipe.rope_theta**exponents
    scaling = recipe.rope_scaling
    if scaling is None:
        return frequencies
    positions, low, high = scaling.original_max_position_embeddings, scaling.low_freq_factor, scaling.high_freq_factor
    wavelengths = 2 * math.pi / frequencies
    scaled = torch.where(wavelengths > positions / low, frequencies / scaling.factor, frequencies)
    smooth = (positions / wavelengths - low) / (high - low)
    smoothed = (1 - smooth) * scaled / scaling.factor + smooth * scaled
    is_medium = (wavelengths >= positions / high) & (wavelengths <= positions / low)
    return torch.where(is_medium, smoothed, scaled)


def apply_rotary_emb(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Rotate pairs of `x` [B, L, heads, hd] by the angles of `cosine` and `sine` [L, 1, hd / 2]; same dtype as `x`."""
    even, odd = x.to(cosine.dtype).unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack([even * cosine - odd * sine, odd * cosine + even * sine], -1).flatten(-2).type_as(x)


class FusedProjection(nn.Module):
    """The projection to queries, keys and values in one matrix."""

    def __init__(self, hidden_size: int, rows: int, bias: bool) -> None:
        super().__init__()
        self.qkv_fused = nn.Linear(hidden_size, rows, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, L, D] -> [B, L, (H + 2K) * hd]."""
        return self.qkv_fused(x)


class Attention(nn.Module):
    """Causal grouped-query attention."""

    def __init__(self, recipe: ModelRecipe) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = recipe.num_attention_heads, recipe.kv_heads, recipe.head_size
        self.window, bias = recipe.window, recipe.has_attention_bias
        self.in_proj = FusedProjection(recipe.hidden_size, (self.heads + 2 * self.kv_heads) * self.head_dim, bias)
        self.dense = nn.Linear(self.heads * self.head_dim, recipe.hidden_size, bias=bias)
        self.q_norm, self.k_norm = (
            nn.RMSNorm(self.head_dim, eps=recipe.rms_norm_eps) if recipe.has_qk_norm else None for _ in range(2)
        )

    def project(
        self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """[B, L, D] -> queries [B, H, L, hd], keys and values [B, K, L, hd].

        Queries and keys are normalized, if the architecture does so, and rotated.
        """
        fused = self.in_proj(x).unflatten(-1, (-1, self.head_dim))
        q, k, v = fused.split([self.heads, self.kv_heads, self.kv_heads], dim=2)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = apply_rotary_emb(q, cosine, sine), apply_rotary_emb(k, cosine, sine)
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)

    def forward(
        self,
        x: torch.Tensor,
        cosine: torch.Tensor,
        sine: torch.Tensor,
        mask: Mask = None,
        cache: LayerCache | None = None,
    ) -> torch.Tensor:
        """[B, L, D] -> [B, L, D]. `mask`: from `mask_of`. `cache`: keys and values of earlier positions."""
        q, k, v = self.project(x, cosine, sine)
        if cache is not None:
            k, v = cache.append(k, v)
            if x.shape[1] == 1 and self.window is not None:
                k, v = k[:, :, -self.window :], v[:, :, -self.window :]
        mixed = attend(q, k, v, mask)
        return self.dense(mixed.transpose(1, 2).flatten(2))


def silu_times(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Twice [..., I] -> [..., I]."""
    return functional.silu(gate) * up


class FeedForward(nn.Module):
    """SwiGLU (arXiv 2002.05202): w2(silu(gate) * up)."""

    def __init__(self, recipe: ModelRecipe) -> None:
        super().__init__()
        self.wg1_fused = nn.Linear(recipe.hidden_size, 2 * recipe.intermediate_size, bias=False)
        self.w2 = nn.Linear(recipe.intermediate_size, recipe.hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        """[B, L, D] -> ([B, L, D], None: it has no router)."""
        gate, up = self.wg1_fused(x).chunk(2, dim=-1)
        return self.w2(silu_times(gate, up)), None


class Block(nn.Module):
    """One transformer block: attention and feed-forward layer, each with an RMSNorm before it and a residual."""

    def __init__(self, recipe: ModelRecipe) -> None:
        super().__init__()
        self.ln = nn.RMSNorm(recipe.hidden_size, eps=recipe.rms_norm_eps)
        self.attn = Attention(recipe)
        self.ff_ln = nn.RMSNorm(recipe.hidden_size, eps=recipe.rms_norm_eps)
        self.ff_sub_layer = (FeedForward if recipe.router is None else SparseFeedForward)(recipe)

    def forward(
        self,
        x: torch.Tensor,
        cosine: torch.Tensor,
        sine: torch.Tensor,
        mask: Mask = None,
        cache: LayerCache | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """[B, L, D] -> ([B, L, D], the router's probabilities [B, L, E] if it has one). `mask`, `cache`: see Attention.

        The probabilities are returned, not kept: activation checkpointing runs a block twice.
        """
        x = x + self.attn(self.ln(x), cosine, sine, mask, cache)
        y, probabilities = self.ff_sub_layer(self.ff_ln(x))
        return x + y, probabilities


class Trunk(nn.Module):
    """Embedding, blocks and the last norm."""

    def __init__(self, recipe: ModelRecipe, vocab_size: int) -> None:
        super().__init__()
        self.recipe = recipe
        self.embedding = nn.Embedding(vocab_size, recipe.hidden_size)
        self.layers = nn.ModuleList(Block(recipe) for _ in range(recipe.num_hidden_layers))
        self.dec_norm = nn.RMSNorm(recipe.hidden_size, eps=recipe.rms_norm_eps)
        self._tables: tuple[object, tuple[torch.Tensor, torch.Tensor]] | None = None

    def forward(
        self, tokens: torch.Tensor, documents: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """int64 [B, L] -> ([B, L, D], normalized, and the probabilities [B, L, E] of each layer's router)."""
        x = self.embedding(tokens)
        mask = self.mask(x, documents)
        cosine, sine = self._rotation_of_rows(tokens.shape[1], tokens.device)
        routed = []
        for block in self.layers:
            x, probabilities = block(x, cosine, sine, mask)
            if probabilities is not None:
                routed.append(probabilities)
        return self.dec_norm(x), routed

    def mask(self, x: torch.Tensor, documents: torch.Tensor | None = None) -> Mask:
        """The mask of attention in rows of embeddings [B, L, D]. `documents`: int64 [B, L]."""
        return mask_of(x, self.recipe.head_size, documents, self.recipe.window)

    def rotation(self, positions: torch.Tensor, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines [positions, 1, hd / 2] of the angles at some positions (an int64 CPU tensor)."""
        angles = torch.outer(positions.float(), rotary_frequencies(self.recipe)).unsqueeze(1)
        precision = torch.promote_types(self.embedding.weight.dtype, torch.float32)
        return angles.cos().to(device, precision), angles.sin().to(device, precision)

    def _rotation_of_rows(self, length: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """The tables of the first `length` positions; those of the last call are kept, since a GPU waits for a copy."""
        # not buffers, which would have to survive meta initialization and a change of dtype
        key = length, device, self.embedding.weight.dtype
        if self._tables is None or self._tables[0] != key:
            with torch.inference_mode(False):  # a tensor made in inference mode could not take part in training
                self._tables = key, self.rotation(torch.arange(length), device)
        return self._tables[1]


class Transformer(nn.Module):
    """The language model; its forward is the loss, so that the head's weight is used inside FSDP's root module."""

    def __init__(self, recipe: ModelRecipe, vocab_size: int) -> None:
        super().__init__()
        self.recipe, self.vocab_size = recipe, vocab_size
        self.base_model = Trunk(recipe, vocab_size)
        self.head = nn.Linear(recipe.hidden_size, vocab_size, bias=False)
        if recipe.tie_word_embeddings:
            self.head.weight = self.base_model.embedding.weight

    def forward(
        self,
        tokens: torch.Tensor,
        targets: torch.Tensor,
        documents: torch.Tensor | None = None,
        z_loss_weight: float = 0.0,
    ) -> tuple[torch.Tensor, torch.Tensor, Routing | None]:
        """(cross_entropy, z_loss, routing): sums over the targets that are not -100, scalars of at least float32.

        cross_entropy is the sum of -ln p(target), z_loss that of z_loss_weight * logsumexp(logits)^2; only their sum
        has a gradient. `tokens`, `targets`: int64 [B, L]. `documents`: int64 [B, L], the number of each token's
        document, from `documents_of`: a token attends only to its own. Default: a row is one document.
        `routing`: of a sparse model.
        """
        hidden_states, routed = self.base_model(tokens, documents)
        weight = self._head_weight(hidden_states.dtype)
        losses = chunked_cross_entropy(hidden_states.flatten(0, 1), weight, targets.flatten(), z_loss_weight)
        return *losses, self._routing(routed, targets)

    def log_probs(
        self, tokens: torch.Tensor, targets: torch.Tensor, documents: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, Routing | None]:
        """(ln p(target) of each target, 0 where it is -100: [B, L], at least float32; routing). See `forward`.

        `parallelize.shard` registers it, so that FSDP gathers weights as in `forward`.
        """
        hidden_states, routed = self.base_model(tokens, documents)
        weight = self._head_weight(hidden_states.dtype)
        log_probs = chunked_log_probs(hidden_states.flatten(0, 1), weight, targets.flatten())
        return log_probs.view_as(targets).clone(), self._routing(routed, targets)  # FSDP warns of a view

    def _head_weight(self, dtype: torch.dtype) -> torch.Tensor:
        """The head's weight in `dtype`, the weight's own unless layers cast their weights (training/parallelize.py).

        A tied one is then the cast that the embedding made: the two gradients are added in `dtype`, as under FSDP.
        """
        embedding, weight = self.base_model.embedding, self.head.weight
        if weight.dtype != dtype and embedding.weight is weight:
            return embedding.cast_weight  # type: ignore[return-value]
        return weight.to(dtype)

    def _routing(self, routed: list[torch.Tensor], targets: torch.Tensor) -> Routing | None:
        router = self.recipe.router
        return None if router is None else routing(routed, targets, router.experts_per_token)

    def logits(self, tokens: torch.Tensor) -> torch.Tensor:
        """int64 [B, L] -> [B, L, V]. Not for a sharded model: FSDP does not gather its weights here."""
        return self.head(self.base_model(tokens)[0])
