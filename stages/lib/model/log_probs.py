"""The log-probability of each target in chunks, so that the logits of all tokens are never in memory at once.

Unlike `loss.chunked_cross_entropy`, each target has a gradient of its own: a loss may weigh, square or compare the
log-probabilities of sequences. The weights are known only in the backward pass, so each chunk's logits are computed
again there: four matrix products in place of three.
"""

from typing import Any

import torch

from stages.lib.model.loss import CHUNK, IGNORED


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
        for start in range(0, len(targets), CHUNK):
            chunk = slice(start, start + CHUNK)
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
        for start in range(0, len(targets), CHUNK):
            chunk = slice(start, start + CHUNK)
            indices, chunk_weights = targets[chunk].clamp(min=0).unsqueeze(1), weights[chunk].unsqueeze(1)
            logits = (hidden_states[chunk] @ weight.t()).to(grad.dtype)
            logits_grad = logits.softmax(1).mul_(-chunk_weights).scatter_add_(1, indices, chunk_weights)
            logits_grad = logits_grad.to(weight.dtype)
            hidden_states_grad[chunk] = logits_grad @ weight
            if weight_grad is not None:
                weight_grad += logits_grad.t() @ hidden_states[chunk]
        return hidden_states_grad, None if weight_grad is None else weight_grad.to(weight.dtype), None
