"""AdamW's groups, its moments, and the clipping of gradients against torch's."""

import pytest
import torch

from stages.lib import parallel
from stages.lib.model import Llama, ModelRecipe
from stages.lib.training import optimizer
from stages.lib.training.optimizer import OptimizerRecipe


@pytest.fixture(autouse=True)
def group_of_one():
    with parallel.ranks():
        yield


def parameters_with_gradients():
    generator = torch.Generator().manual_seed(2)
    parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in [(300, 40), (40,), (7, 5)]]
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    return [*parameters, torch.nn.Parameter(torch.zeros(3))]  # the last has no gradient


@pytest.mark.parametrize("limit", [0.5, 1e6])
def test_gradients_are_clipped_as_torch_clips_them(limit):
    ours, theirs = parameters_with_gradients(), parameters_with_gradients()
    norm = optimizer.clip_gradients(ours, limit)
    assert norm.dtype == torch.float64
    assert norm.item() == pytest.approx(torch.nn.utils.clip_grad_norm_(theirs, limit).item(), rel=1e-7)
    for our, their in zip(ours[:3], theirs[:3], strict=True):
        torch.testing.assert_close(our.grad, their.grad, rtol=1e-6, atol=0)


def test_matrices_decay_and_norms_do_not():
    model = Llama(ModelRecipe(layers=1, width=8, heads=2, hidden=8, tie=True), 11)
    built = optimizer.build(model, OptimizerRecipe(weight_decay=0.3))
    decay = {id(parameter): group["weight_decay"] for group in built.param_groups for parameter in group["params"]}
    named = dict(model.named_parameters())
    assert len(decay) == len(named)
    for name, parameter in named.items():
        assert decay[id(parameter)] == (0.0 if "ln" in name or "norm" in name else 0.3)


def test_moments_before_the_first_step_are_zeros_of_the_same_keys_as_after_it():
    model = Llama(ModelRecipe(layers=1, width=8, heads=2, hidden=8), 11)
    built = optimizer.build(model, OptimizerRecipe())
    before = optimizer.moments(model, built)
    assert not any(tensor.any() for state in before.values() for tensor in state.values())
    shapes = {(name, key): tensor.shape for name, state in before.items() for key, tensor in state.items()}
    given = torch.arange(6).view(1, 6)
    model(given, given).backward()
    built.step()
    after = optimizer.moments(model, built)
    assert {(name, key): tensor.shape for name, state in after.items() for key, tensor in state.items()} == shapes
    assert all(state["step"] == 1 for state in after.values())
