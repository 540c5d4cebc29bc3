"""Generation with a KV cache: the prompt in one forward pass, then one token per forward pass.

The blocks are those of training, which are given the keys and values of earlier positions. On a GPU a token after the
prompt is one CUDA graph, whose shapes do not grow with the text: the host would launch hundreds of kernels for it.
"""

from collections.abc import Collection, Iterable, Iterator
from typing import Any

import torch
from torch.nn import functional

from stages.lib.errors import UserError
from stages.lib.model.transformer import Transformer


class LayerCache:
    """Keys and values [B, K, positions, hd] of a layer, filled from the first position on."""

    def __init__(self, shape: tuple[int, ...], weight: torch.Tensor) -> None:
        # zeros: a position that is masked must still be a number
        self.keys, self.values = (torch.zeros(shape, dtype=weight.dtype, device=weight.device) for _ in range(2))
        self.length = 0
        """Number of filled positions."""

    def append(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Add keys and values [B, K, L, hd], and return those of all positions."""
        end = self.length + keys.shape[2]
        self.keys[:, :, self.length : end], self.values[:, :, self.length : end] = keys, values
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]


class Cache:
    """The KV cache of a model: a LayerCache per layer, and the angles of all positions."""

    def __init__(self, model: Transformer, batch_size: int, positions: int) -> None:
        recipe, weight = model.recipe, model.base_model.embedding.weight
        shape = (batch_size, recipe.kv_heads, positions, recipe.head_size)
        self.layers = [LayerCache(shape, weight) for _ in range(recipe.num_hidden_layers)]
        self.rotation = model.base_model.rotation(torch.arange(positions), weight.device)

    @property
    def length(self) -> int:
        """Number of filled positions."""
        return self.layers[0].length


def next_logits(model: Transformer, tokens: torch.Tensor, cache: Cache) -> torch.Tensor:
    """The logits [B, V] of the token after `tokens`, int64 [B, L], which follow the positions in the cache.

    L is the length of the prompt while the cache is empty, and 1 afterwards.
    """
    assert cache.length == 0 or tokens.shape[1] == 1
    trunk, positions = model.base_model, slice(cache.length, cache.length + tokens.shape[1])
    cosine, sine = (table[positions] for table in cache.rotation)
    x = trunk.embedding(tokens)
    mask = trunk.mask(x)
    for block, layer in zip(trunk.layers, cache.layers, strict=True):
        x, _ = block(x, cosine, sine, mask, layer)
    return model.head(trunk.dec_norm(x[:, -1]))


WARM_UP = 2
"""Steps before the capture: torch chooses kernels and allocates workspaces in them."""


class StaticSteps:
    """Computes what `next_logits` does for one token after another, with tensors whose shapes and places stay.

    Attention is to all positions of the cache, and those to come are masked: the logits are those of `next_logits` up
    to rounding. Not for sliding windows, nor for experts, whose numbers of tokens the host may wait for.
    """

    def __init__(self, model: Transformer, cache: Cache) -> None:
        self.model, self.cache = model, cache
        keys = cache.layers[0].keys
        self.tokens = torch.zeros(len(keys), 1, dtype=torch.int64, device=keys.device)
        self.position = torch.full((1,), cache.length, device=keys.device)
        self.positions = torch.arange(keys.shape[2], device=keys.device)
        self.layers = [_PlacedCache(layer, self.position) for layer in cache.layers]
        self.stream = torch.cuda.Stream()
        self.graph: Any = None
        self._logits: torch.Tensor | None = None
        self._num_run = 0

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        """int64 [B, 1] -> the logits [B, V] of the token after `tokens`, which the next call overwrites."""
        self.tokens.copy_(tokens)
        current = torch.cuda.current_stream()
        self.stream.wait_stream(current)
        if self._num_run < WARM_UP:
            self._num_run += 1
            with torch.cuda.stream(self.stream):
                logits = self._step()
            current.wait_stream(self.stream)
        else:
            if self.graph is None:
                self.graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(self.graph, stream=self.stream, capture_error_mode="thread_local"):
                    self._logits = self._step()
            self.graph.replay()
            assert self._logits is not None
            logits = self._logits
        self.position += 1
        return logits

    def _step(self) -> torch.Tensor:
        cosine, sine = (table.index_select(0, self.position) for table in self.cache.rotation)
        mask = (self.positions <= self.position).view(1, 1, 1, -1)
        trunk = self.model.base_model
        x = trunk.embedding(self.tokens)
        for block, layer in zip(trunk.layers, self.layers, strict=True):
            x, _ = block(x, cosine, sine, mask, layer)
        return self.model.head(trunk.dec_norm(x[:, -1]))


class _PlacedCache:
    """A LayerCache whose next position is a tensor [1]; its keys and values are those of all positions."""

    def __init__(self, layer: LayerCache, position: torch.Tensor) -> None:
        self.layer, self.position = layer, position

    def append(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for known, new in ((self.layer.keys, keys), (self.layer.values, values)):
            known.index_copy_(2, self.position, new)
        return self.layer.keys, self.layer.values


def has_static_steps(model: Transformer) -> bool:
    """Return true if tokens after a prompt are computed by StaticSteps."""
    return model.head.weight.device.type == "cuda" and model.recipe.window is None and model.recipe.router is None


class Sampler:
    """Chooses the next token of each row: the most probable at temperature 0, else one drawn from the nucleus.

    Each row has its own seed and draws on the CPU, so that its text depends neither on the device's generator nor on
    the number of rows.
    """

    def __init__(self, temperature: float, top_p: float, seeds: Iterable[int]) -> None:
        self.temperature, self.top_p = temperature, top_p
        self.generators = [torch.Generator().manual_seed(seed) for seed in seeds]

    def __call__(self, logits: torch.Tensor) -> torch.Tensor:
        """[B, V] -> int64 [B]."""
        if self.temperature == 0:
            return logits.argmax(-1)
        logits = logits.double()
        scaled = (logits - logits.amax(-1, keepdim=True)) / self.temperature  # at most 0: nothing overflows
        kept, tokens = nucleus(scaled.softmax(-1), self.top_p)
        drawn = torch.cat([torch.rand(1, dtype=torch.float64, generator=generator) for generator in self.generators])
        return tokens.gather(-1, _index_at(kept, drawn.to(kept.device))).squeeze(-1)


def nucleus(probabilities: torch.Tensor, top_p: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The smallest set of tokens whose probabilities sum to at least `top_p` (Holtzman et al., arXiv 1904.09751).

    float64 [B, V] -> (probabilities in descending order with 0 outside of the set, their tokens), [B, V] both.
    """
    ordered, tokens = probabilities.sort(dim=-1, descending=True, stable=True)
    if top_p == 1:
        return ordered, tokens
    before = functional.pad(ordered.cumsum(-1)[:, :-1], (1, 0))
    return ordered.masked_fill(before >= top_p, 0), tokens


def _index_at(weights: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
    """The index at which the cumulative sum of `weights` passes the share `drawn` in [0, 1) of the whole sum.

    float64 [B, V] and [B] -> int64 [B, 1].
    """
    sums = weights.cumsum(-1)
    indices = torch.searchsorted(sums, drawn.unsqueeze(-1) * sums[:, -1:], right=True)
    return indices.minimum((weights > 0).sum(-1, keepdim=True) - 1)  # a share so near 1 that it rounds to the sum


@torch.inference_mode()
def continuations(
    model: Transformer, prompt: torch.Tensor, limit: int, sampler: Sampler, ends: Collection[int], vocab_size: int
) -> Iterator[list[int | None]]:
    """Yield the next token of each row of `prompt`, int64 [B, L], as a list of B; None for rows that have ended.

    A row ends before a token of `ends`, and after `limit` tokens. L + limit - 1 is at most the model's
    max_position_embeddings. Only tokens under `vocab_size` are chosen: further rows of the head are padding. Raises
    UserError if a logit is not finite.
    """
    cache = Cache(model, len(prompt), prompt.shape[1] + limit - 1)
    tokens, running = prompt, [True] * len(prompt)
    steps: StaticSteps | None = None
    for number in range(limit):
        if number == 1 and has_static_steps(model):
            steps = StaticSteps(model, cache)
        logits = (next_logits(model, tokens, cache) if steps is None else steps(tokens))[:, :vocab_size]
        if not torch.isfinite(logits).all():
            raise UserError(
                "the logits must be finite numbers, and the model gives NaN or infinity: its weights are not usable"
            )
        chosen = sampler(logits)
        running = [active and token not in ends for active, token in zip(running, chosen.tolist(), strict=True)]
        yield [token if active else None for active, token in zip(running, chosen.tolist(), strict=True)]
        if not any(running):
            return
        tokens = chosen.unsqueeze(1)
