"""The chunked cross-entropy and log-probabilities against plain ones."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from stages.lib.model import loss
from stages.lib.model.flops import loss_chunk
from stages.lib.model.loss import CHUNK, IGNORED, chunked_cross_entropy, chunked_log_probs

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


def values_and_gradients(function, dtype, z_loss_weight):
    hidden_states, weight, targets = inputs(dtype)
    loss, z_loss = function(hidden_states, weight, targets, z_loss_weight)
    ((loss + z_loss) * 0.25).backward()  # an incoming gradient that is not 1
    return loss.detach(), z_loss.detach(), hidden_states.grad, weight.grad


def precise(hidden_states, weight, targets, z_loss_weight):
    logits = hidden_states.double() @ weight.double().t()
    z_loss = z_loss_weight * logits.logsumexp(1)[targets != IGNORED].square().sum()
    return cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum"), z_loss


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 2e-2)]
)
@pytest.mark.parametrize("z_loss_weight", [0.0, 1e-2])
def test_values_and_gradients_are_those_of_plain_cross_entropy_and_z_loss(dtype, tolerance, z_loss_weight):
    found = values_and_gradients(chunked_cross_entropy, dtype, z_loss_weight)
    for ours, theirs in zip(found, values_and_gradients(precise, dtype, z_loss_weight), strict=True):
        scale = theirs.double().abs().max()
        assert (ours.double() - theirs.double()).abs().max() <= tolerance * scale
    loss, z_loss, *_ = found
    assert loss.dtype == z_loss.dtype == torch.promote_types(dtype, torch.float32)
    assert (z_loss > 0) == (z_loss_weight > 0)


def test_a_gpu_with_more_memory_has_larger_chunks_which_change_no_loss(monkeypatch):
    sizes = [(80e9, 128_256), (24e9, 128_256), (80e9, 32_000), (4e9, 256_000)]
    assert [loss_chunk(*size) for size in sizes] == [4096, 1024, 4096, 512]
    found = values_and_gradients(chunked_cross_entropy, torch.float64, 1e-2)
    monkeypatch.setattr(loss, "chunk_size", lambda *_: 4096)
    for ours, theirs in zip(values_and_gradients(chunked_cross_entropy, torch.float64, 1e-2), found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_compiled_losses_are_those_of_the_single_operators(dtype, monkeypatch):
    expected = values_and_gradients(chunked_cross_entropy, dtype, 1e-2)
    monkeypatch.setattr(loss, "losses_and_gradient", loss.compiled())
    for ours, theirs in zip(values_and_gradients(chunked_cross_entropy, dtype, 1e-2), expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_z_loss_of_weight_0_needs_no_gradient_and_else_only_the_sum_has_one():
    loss, z_loss = chunked_cross_entropy(*inputs(torch.float32))
    assert z_loss == 0 and not z_loss.requires_grad
    assert loss.requires_grad
    found = chunked_cross_entropy(*inputs(torch.float32), z_loss_weight=1e-2)
    with torch.no_grad():
        assert chunked_cross_entropy(*inputs(torch.float32), z_loss_weight=1e-2) == found
    with pytest.raises(AssertionError, match="sum of cross-entropy and z-loss"):
        found[0].backward()


def test_no_target_gives_no_loss_and_no_gradient():
    hidden_states, weight, targets = inputs(torch.float32)
    loss, _ = chunked_cross_entropy(hidden_states, weight, torch.full_like(targets, IGNORED))
    loss.backward()
    assert loss == 0
    assert not hidden_states.grad.any()
    assert not weight.grad.any()


def log_probs_and_gradients(function, dtype):
    hidden_states, weight, targets = inputs(dtype)
    found = function(hidden_states, weight, targets)
    importance = torch.linspace(-1, 2, TOKENS, dtype=found.dtype)
    (found * importance).sum().backward()
    return found.detach(), hidden_states.grad, weight.grad


def precise_log_probs(hidden_states, weight, targets):
    log_probs = (hidden_states.double() @ weight.double().t()).log_softmax(1)
    return log_probs.gather(1, targets.clamp(min=0).unsqueeze(1)).squeeze(1) * (targets != IGNORED)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 2e-2)]
)
def test_values_and_gradients_are_those_of_plain_log_softmax(dtype, tolerance):
    found = log_probs_and_gradients(chunked_log_probs, dtype)
    for ours, theirs in zip(found, log_probs_and_gradients(precise_log_probs, dtype), strict=True):
        assert (ours.double() - theirs.double()).abs().max() <= tolerance * theirs.double().abs().max()
    assert found[0].dtype == torch.promote_types(dtype, torch.float32)


def test_frozen_head_gets_no_gradient():
    hidden_states, weight, targets = inputs(torch.float32)
    expected = torch.autograd.grad(chunked_log_probs(hidden_states, weight, targets).sum(), hidden_states)
    frozen = weight.detach()
    chunked_log_probs(hidden_states, frozen, targets).sum().backward()
    assert torch.equal(hidden_states.grad, expected[0])
    assert frozen.grad is None
