"""The chunked cross-entropy against the plain one."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from stages.lib.model.loss import CHUNK, IGNORED, chunked_cross_entropy

TOKENS, WIDTH, VOCABULARY = 2 * CHUNK + 37, 16, 101


def inputs(dtype):
    """Hidden states and head that want gradients; of the targets every seventh and one whole chunk are ignored."""
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(TOKENS, WIDTH, generator=generator).to(dtype).requires_grad_()
    weight = torch.randn(VOCABULARY, WIDTH, generator=generator).to(dtype).requires_grad_()
    targets = torch.randint(0, VOCABULARY, (TOKENS,), generator=generator)
    targets[::7] = IGNORED
    targets[CHUNK : 2 * CHUNK] = IGNORED
    return hidden, weight, targets


def values_and_gradients(function, dtype, z_loss):
    hidden, weight, targets = inputs(dtype)
    loss, penalty = function(hidden, weight, targets, z_loss)
    ((loss + penalty) * 0.25).backward()  # a gradient from above that is not 1
    return loss.detach(), penalty.detach(), hidden.grad, weight.grad


def precise(hidden, weight, targets, z_loss):
    logits = hidden.double() @ weight.double().t()
    penalty = z_loss * logits.logsumexp(1)[targets != IGNORED].square().sum()
    return cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum"), penalty


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 2e-2)]
)
@pytest.mark.parametrize("z_loss", [0.0, 1e-2])
def test_values_and_gradients_are_those_of_plain_cross_entropy_and_penalty(dtype, tolerance, z_loss):
    found = values_and_gradients(chunked_cross_entropy, dtype, z_loss)
    for ours, theirs in zip(found, values_and_gradients(precise, dtype, z_loss), strict=True):
        scale = theirs.double().abs().max()
        assert (ours.double() - theirs.double()).abs().max() <= tolerance * scale
    loss, penalty, *_ = found
    assert loss.dtype == penalty.dtype == torch.promote_types(dtype, torch.float32)
    assert (penalty > 0) == (z_loss > 0)


def test_a_penalty_of_weight_0_is_0_and_needs_no_gradient():
    loss, penalty = chunked_cross_entropy(*inputs(torch.float32))
    assert penalty == 0 and not penalty.requires_grad
    assert loss.requires_grad


def test_with_a_penalty_only_the_sum_has_a_gradient():
    loss, _ = chunked_cross_entropy(*inputs(torch.float32), z_loss=1e-2)
    with pytest.raises(AssertionError, match="sum of cross-entropy and penalty"):
        loss.backward()


def test_no_target_gives_no_loss_and_no_gradient():
    hidden, weight, targets = inputs(torch.float32)
    loss, _ = chunked_cross_entropy(hidden, weight, torch.full_like(targets, IGNORED))
    loss.backward()
    assert loss == 0
    assert not hidden.grad.any()
    assert not weight.grad.any()


def test_gradient_reaches_the_last_row_of_the_head():
    hidden, weight, targets = inputs(torch.float32)
    chunked_cross_entropy(hidden, weight, targets)[0].backward()
    assert weight.grad[-1].abs().max() > 0


def test_without_gradients_the_value_is_the_same():
    hidden, weight, targets = inputs(torch.float32)
    with torch.no_grad():
        scored = chunked_cross_entropy(hidden, weight, targets, z_loss=1e-2)
    assert scored == chunked_cross_entropy(hidden, weight, targets, z_loss=1e-2)
