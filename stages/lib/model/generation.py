"""Decoding: a prompt in one forward, then one token after the other, with the keys and values of all positions kept.

It goes through the modules of stages/lib/model/llama.py, and leaves their forwards, which training uses, as they are.
"""

import torch
from torch.nn import functional

from stages.lib.errors import UserError


class Cache:
    """Keys and values [B, K, positions, hd] of each layer, and how many positions are filled so far (`length`)."""

    def __init__(self, model, batch, positions):
        recipe, weight = model.recipe, model.base_model.embedding.weight
        shape = (batch, recipe.kv_heads, positions, recipe.head_dim)
        self.keys, self.values = (
            [torch.empty(shape, dtype=weight.dtype, device=weight.device) for _ in range(recipe.num_hidden_layers)]
            for _ in range(2)
        )
        self.rotation = model.base_model.rotation(torch.arange(positions), weight.device)
        self.length = 0


def next_logits(model, tokens, cache):
    """The logits [B, V] behind the last of `tokens`, int64 [B, L], which come after the positions in the cache.

    L is that of the prompt while the cache is empty, and 1 afterwards.
    """
    assert cache.length == 0 or tokens.shape[1] == 1
    trunk, positions = model.base_model, slice(cache.length, cache.length + tokens.shape[1])
    cosine, sine = (table[positions] for table in cache.rotation)
    x = trunk.embedding(tokens)
    for block, keys, values in zip(trunk.layers, cache.keys, cache.values, strict=True):
        q, keys[:, :, positions], values[:, :, positions] = block.attn.project(block.ln(x), cosine, sine)
        x = x + _attend(block.attn, q, keys[:, :, : positions.stop], values[:, :, : positions.stop])
        x = x + block.ff_sub_layer(block.ff_ln(x))
    cache.length = positions.stop
    return model.head(trunk.dec_norm(x[:, -1]))


def _attend(attention, q, k, v):
    """Queries [B, H, L, hd] of the last L positions over keys and values [B, K, T, hd] of all T: [B, L, D]."""
    causal, grouped = q.shape[2] > 1, attention.heads != attention.kv_heads  # one query may see every position
    mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)
    return attention.dense(mixed.transpose(1, 2).flatten(2))


class Sampler:
    """Chooses the next token of each row: the most probable at temperature 0, else one drawn from the nucleus.

    A row has a seed of its own and draws on the CPU, so that its text does not depend on the device's generator, nor on
    how many rows there are.
    """

    def __init__(self, temperature, top_p, seeds):
        self.temperature, self.top_p = temperature, top_p
        self.generators = [torch.Generator().manual_seed(seed) for seed in seeds]

    def __call__(self, logits):
        """[B, V] -> int64 [B]."""
        if self.temperature == 0:
            return logits.argmax(-1)
        logits = logits.double()
        scaled = (logits - logits.amax(-1, keepdim=True)) / self.temperature  # of 0 and less: nothing overflows
        kept, tokens = nucleus(scaled.softmax(-1), self.top_p)
        drawn = torch.cat([torch.rand(1, dtype=torch.float64, generator=generator) for generator in self.generators])
        return tokens.gather(-1, _place(kept, drawn.to(kept.device))).squeeze(-1)


def nucleus(probabilities, top_p):
    """The smallest set of tokens whose probabilities sum to at least `top_p` (Holtzman et al., arXiv 1904.09751).

    float64 [B, V] -> (probabilities in falling order with 0 outside of the set, their tokens), [B, V] both.
    """
    ordered, tokens = probabilities.sort(dim=-1, descending=True, stable=True)
    if top_p == 1:
        return ordered, tokens
    before = functional.pad(ordered.cumsum(-1)[:, :-1], (1, 0))
    return ordered.masked_fill(before >= top_p, 0), tokens


def _place(weights, drawn):
    """The place of the weight at a share `drawn` in [0, 1) of the sum: float64 [B, V] and [B] -> int64 [B, 1]."""
    sums = weights.cumsum(-1)
    places = torch.searchsorted(sums, drawn.unsqueeze(-1) * sums[:, -1:], right=True)
    return places.minimum((weights > 0).sum(-1, keepdim=True) - 1)  # a share so near 1 that it rounds to the sum


@torch.inference_mode()
def continuations(model, prompt, limit, sampler, ends, vocab_size):
    """Yield each next token of the rows of `prompt`, int64 [B, L], as a list of B; None for rows that have ended.

    A row ends before a token of `ends`; all do after `limit` tokens. L + limit - 1 is at most the model's
    max_position_embeddings. Only tokens under `vocab_size` are chosen: further rows of the head are padding. Raises
    UserError if a logit is not finite.
    """
    cache = Cache(model, len(prompt), prompt.shape[1] + limit - 1)
    tokens, running = prompt, [True] * len(prompt)
    for _ in range(limit):
        logits = next_logits(model, tokens, cache)[:, :vocab_size]
        if not torch.isfinite(logits).all():
            raise UserError("the model gives logits that are no finite numbers: its weights are not usable")
        chosen = sampler(logits)
        running = [more and token not in ends for more, token in zip(running, chosen.tolist(), strict=True)]
        yield [token if more else None for more, token in zip(running, chosen.tolist(), strict=True)]
        if not any(running):
            return
        tokens = chosen.unsqueeze(1)
