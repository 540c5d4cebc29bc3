"""The Llama by itself; test_export.py holds its logits against transformers and ibm-fms."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from stages.lib.model import Llama, ModelRecipe
from tests.stages.export_fixtures import random_model

SMALL = {"layers": 2, "width": 32, "heads": 4, "kv_heads": 2, "hidden": 48}
VOCABULARY = 70


def tokens(rows=2, length=12):
    return torch.randint(0, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(1))


def test_forward_is_the_cross_entropy_of_the_logits():
    model = random_model(ModelRecipe(**SMALL), VOCABULARY)
    given = tokens()
    expected = cross_entropy(model.logits(given[:, :-1]).flatten(0, 1), given[:, 1:].flatten(), reduction="sum")
    torch.testing.assert_close(model(given[:, :-1], given[:, 1:]), expected, rtol=1e-6, atol=1e-4)


def test_a_token_sees_none_that_follow_it():
    model = random_model(ModelRecipe(**SMALL), VOCABULARY)
    given = tokens()
    changed = given.clone()
    changed[:, 7:] = (changed[:, 7:] + 1) % VOCABULARY
    ours, theirs = model.logits(given), model.logits(changed)
    torch.testing.assert_close(ours[:, :7], theirs[:, :7], rtol=0, atol=1e-6)
    assert (ours[:, 7:] - theirs[:, 7:]).abs().max() > 0.1


@pytest.mark.parametrize("tie", [False, True])
def test_gradient_reaches_every_parameter_and_the_last_row_of_the_vocabulary(tie):
    model = random_model(ModelRecipe(**SMALL, tie=tie), VOCABULARY)
    given = tokens()
    given[0, 3] = VOCABULARY - 1
    model(given[:, :-1], given[:, 1:]).backward()
    assert all(parameter.grad.abs().max() > 0 for parameter in model.parameters())
    assert model.head.weight.grad[-1].abs().max() > 0
    assert model.base_model.embedding.weight.grad[-1].abs().max() > 0


def test_tied_head_is_one_tensor_under_two_keys():
    tied, untied = (Llama(ModelRecipe(**SMALL, tie=tie), VOCABULARY) for tie in (True, False))
    assert tied.head.weight is tied.base_model.embedding.weight
    assert list(tied.state_dict()) == list(untied.state_dict())
    difference = sum(p.numel() for p in untied.parameters()) - sum(p.numel() for p in tied.parameters())
    assert difference == VOCABULARY * SMALL["width"]
