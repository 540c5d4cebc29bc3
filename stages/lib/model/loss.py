"""Cross-entropy in chunks, so that the logits of all tokens are never in memory at once.

At a vocabulary of 32k and 4,096 tokens, plain logits and their gradient take 2.3 GB. Here a chunk's gradient is
computed in its forward pass, while its logits exist: three matrix products, like the plain form, and none twice.
"""

import functools
from collections.abc import Iterator
from typing import Any

import torch

from stages.lib.distributed import gpus
from stages.lib.model.flops import loss_chunk


def chunked_log_probs(hidden_states: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return ln softmax(hidden_states @ weight.T)[target] of each target, 0 where it is IGNORED: [N].

    `hidden_states` [N, D], `weight` [V, D], `targets` int64 [N]. The result is float32, or float64 if the inputs are;
    the head's gradient is accumulated in the same precision.
    """
    return _ChunkedLogProbs.apply(hidden_states, weight, targets)


class _ChunkedLogProbs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden_states: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        precision = torch.promote_types(weight.dtype, torch.float32)
        found = torch.empty(len(targets), dtype=precision, device=hidden_states.device)
        for chunk in chunks(targets, weight):
            logits = (hidden_states[chunk] @ weight.t()).to(precision)
            indices = targets[chunk].clamp(min=0).unsqueeze(1)
            found[chunk] = (logits.gather(1, indices) - logits.logsumexp(1, keepdim=True)).squeeze(1)
        ctx.save_for_backward(hidden_states, weight, targets)
        return found.mul_(targets != IGNORED)

    @staticmethod
    def backward(  # type: ignore[override]
        ctx: Any, grad: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None, None]:
        hidden_states, weight, targets = ctx.saved_tensors
        hidden_states_grad = torch.empty_like(hidden_states)
        weight_grad = torch.zeros_like(weight, dtype=grad.dtype) if ctx.needs_input_grad[1] else None
        weights = grad * (targets != IGNORED)
        for chunk in chunks(targets, weight):
            indices, chunk_weights = targets[chunk].clamp(min=0).unsqueeze(1), weights[chunk].unsqueeze(1)
            logits = (hidden_states[chunk] @ weight.t()).to(grad.dtype)
            logits_grad = logits.softmax(1).mul_(-chunk_weights).scatter_add_(1, indices, chunk_weights)
            logits_grad = logits_grad.to(weight.dtype)
            hidden_states_grad[chunk] = logits_grad @ weight
            if weight_grad is not None:
                add_product(weight_grad, logits_grad, hidden_states[chunk])
        return hidden_states_grad, None if weight_grad is None else weight_grad.to(weight.dtype), None


IGNORED = -100
CHUNK = 512
"""Tokens per chunk on the CPU: enough for fast matrix products, and 64 MB of logits at a vocabulary of 32k."""

CACHED = 1 << 18
"""Logits that are worked on at a time on the CPU: 1 MB, which the second cache of a core holds."""


def chunks(targets: torch.Tensor, weight: torch.Tensor) -> Iterator[slice]:
    """Yield the slices of `targets` [N] that are worked on at a time, for a head `weight` [V, D]."""
    size = chunk_size(weight.device, len(weight))
    for start in range(0, len(targets), size):
        yield slice(start, start + size)


def chunk_size(device: torch.device, vocab_size: int) -> int:
    """Return the tokens of a chunk. The head's gradient, V x D in float32, is read and written once per chunk.

    So a GPU has as large ones as its memory allows: of 80 GB, 4,096 tokens at a vocabulary of 128k.
    """
    return CHUNK if device.type != "cuda" else loss_chunk(_memory(device), vocab_size)


@functools.cache
def _memory(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).total_memory


def chunked_cross_entropy(
    hidden_states: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, z_loss_weight: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Two sums over all targets that are not IGNORED: the cross-entropy and the z-loss.

    With logits = hidden_states @ weight.T these are the sums of -ln softmax(logits)[target] and of
    z_loss_weight * logsumexp(logits)^2 (PaLM, arXiv 2204.02311, section 5). `hidden_states` [N, D], `weight` [V, D],
    `targets` int64 [N]. The sums and the head's gradient are accumulated in float32, or in float64 if the inputs are.

    If `z_loss_weight` is not 0, only the sum of the two has a gradient.
    """
    return _ChunkedCrossEntropy.apply(hidden_states, weight, targets, z_loss_weight)


def add_product(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    """Add left.T @ right to `total`, in its precision: [N, V], [N, D] -> [V, D].

    Of bfloat16 matrices, an NVIDIA GPU adds the sums in float32; elsewhere each product is rounded to bfloat16 first.
    """
    if total.dtype == left.dtype:
        total.addmm_(left.t(), right)
    elif total.device.type == "cuda" and torch.version.hip is None:
        torch.addmm(total, left.t(), right, out_dtype=total.dtype, out=total)
    else:
        total += left.t() @ right


def rows_at_a_time(logits: torch.Tensor) -> int:
    """Return the rows of `logits` that are worked on at a time: on the CPU as many as its caches hold."""
    return len(logits) if logits.device.type != "cpu" else max(1, CACHED // logits.shape[1])


def losses_and_gradient(
    logits: torch.Tensor, indices: torch.Tensor, counted: torch.Tensor, z_loss_weight: float, needs_grad: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sums of cross-entropy and z-loss; turn `logits` [N, V] into the gradient of their sum.

    `indices`: int64 [N, 1], the targets. `counted`: [N, 1], 1 if a target counts, otherwise 0, in the dtype in which
    the losses are computed.
    """
    wide = logits.to(counted.dtype)
    largest = wide.amax(1, keepdim=True)
    of_targets = wide.sub_(largest).gather(1, indices)
    sums = wide.exp_().sum(1, keepdim=True)  # logsumexp would compute the exponentials once more
    logarithms = sums.log()
    normalizer = largest + logarithms
    if needs_grad:
        wide.mul_(counted * (1 + 2 * z_loss_weight * normalizer) / sums)
        if torch.compiler.is_compiling():  # a scatter would be a kernel of its own, through float32 in memory
            targets = torch.arange(logits.shape[1], device=logits.device) == indices
            wide = torch.where(targets, wide - counted, wide)
        else:
            wide.scatter_add_(1, indices, -counted)
        if wide is not logits:
            logits.copy_(wide)
    z_losses = z_loss_weight * normalizer.square()
    return ((logarithms - of_targets) * counted).sum(), (z_losses * counted).sum()


@functools.cache
def compiled() -> Any:
    """Return `losses_and_gradient` in few kernels: bfloat16 logits are read three times and written once."""
    return torch.compile(losses_and_gradient, dynamic=False)


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_states: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, z_loss_weight: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        precision = torch.promote_types(weight.dtype, torch.float32)
        cross_entropy, z_loss = (torch.zeros((), dtype=precision, device=hidden_states.device) for _ in range(2))
        needs_weight_grad = ctx.needs_input_grad[1]  # not if the head is frozen
        needs_grad = ctx.needs_input_grad[0] or needs_weight_grad
        if needs_grad:
            hidden_states_grad = torch.empty_like(hidden_states)
        weight_grad = torch.zeros_like(weight, dtype=precision) if needs_weight_grad else None
        function = compiled() if weight.device.type == "cuda" and gpus.can_compile() else losses_and_gradient
        for chunk in chunks(targets, weight):
            logits = hidden_states[chunk] @ weight.t()
            counted = (targets[chunk] != IGNORED).to(precision).unsqueeze(1)
            indices = targets[chunk].clamp(min=0).unsqueeze(1)
            size = rows_at_a_time(logits)
            for part in zip(logits.split(size), indices.split(size), counted.split(size), strict=True):
                found = function(*part, z_loss_weight, needs_grad)
                cross_entropy += found[0]
                z_loss += found[1]
            if needs_grad:
                hidden_states_grad[chunk] = logits @ weight
                if weight_grad is not None:
                    add_product(weight_grad, logits, hidden_states[chunk])
        if needs_grad:
            ctx.save_for_backward(hidden_states_grad, weight_grad)
            ctx.weight_dtype = weight.dtype
        ctx.set_materialize_grads(False)
        ctx.has_z_loss = bool(z_loss_weight)
        if not z_loss_weight:
            ctx.mark_non_differentiable(z_loss)
        return cross_entropy, z_loss

    @staticmethod
    def backward(  # type: ignore[override]
        ctx: Any, grad: torch.Tensor | None, z_loss_grad: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None, None, None]:
        if (grad is None) or (ctx.has_z_loss and z_loss_grad is None):
            raise AssertionError("only the sum of cross-entropy and z-loss has a gradient")
        hidden_states_grad, weight_grad = ctx.saved_tensors
        scaled = None if weight_grad is None else (weight_grad * grad).to(ctx.weight_dtype)
        return hidden_states_grad * grad.to(hidden_states_grad.dtype), scaled, None, None
