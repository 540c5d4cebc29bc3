"""The chunked log-probabilities of targets against plain ones, each with a gradient of its own."""

import pytest
import torch

from stages.lib.model.loss import CHUNK, IGNORED, chunked_log_probs

TOKENS, HIDDEN_SIZE, VOCABULARY = 2 * CHUNK + 37, 16, 101


def inputs(dtype):
    """Hidden states and a head that require gradients; every seventh target and one whole chunk are ignored."""
    generator = torch.Generator().manual_seed(3)
    hidden_states = torch.randn(TOKENS, HIDDEN_SIZE, generator=generator).to(dtype).requires_grad_()
    weight = torch.randn(VOCABULARY, HIDDEN_SIZE, generator=generator).to(dtype).requires_grad_()
    targets = torch.randint(0, VOCABULARY, (TOKENS,), generator=generator)
    targets[::7] = IGNORED
    targets[CHUNK : 2 * CHUNK] = IGNORED
    return hidden_states, weight, targets


def values_and_gradients(function, dtype):
    hidden_states, weight, targets = inputs(dtype)
    found = function(hidden_states, weight, targets)
    importance = torch.linspace(-1, 2, TOKENS, dtype=found.dtype)
    (found * importance).sum().backward()
    return found.detach(), hidden_states.grad, weight.grad


def precise(hidden_states, weight, targets):
    log_probs = (hidden_states.double() @ weight.double().t()).log_softmax(1)
    return log_probs.gather(1, targets.clamp(min=0).unsqueeze(1)).squeeze(1) * (targets != IGNORED)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 2e-2)]
)
def test_values_and_gradients_are_those_of_plain_log_softmax(dtype, tolerance):
    found = values_and_gradients(chunked_log_probs, dtype)
    for ours, theirs in zip(found, values_and_gradients(precise, dtype), strict=True):
        assert (ours.double() - theirs.double()).abs().max() <= tolerance * theirs.double().abs().max()
    assert found[0].dtype == torch.promote_types(dtype, torch.float32)


def test_frozen_head_gets_no_gradient():
    hidden_states, weight, targets = inputs(torch.float32)
    expected = torch.autograd.grad(chunked_log_probs(hidden_states, weight, targets).sum(), hidden_states)
    frozen = weight.detach()
    chunked_log_probs(hidden_states, frozen, targets).sum().backward()
    assert torch.equal(hidden_states.grad, expected[0])
    assert frozen.grad is None
