"""AdamW's groups, its moments, the steps that it skips, and the clipping of gradients against torch's."""

import pytest
import torch

from stages.lib import recipe
from stages.lib.errors import UserError
from stages.lib.model.architectures import LlamaRecipe
from stages.lib.model.transformer import Transformer
from stages.lib.training.optimizers import adamw, registry
from stages.lib.training.optimizers.optimizer import clip_gradients
from stages.lib.training.optimizers.recipe import OptimizerRecipe

pytestmark = pytest.mark.usefixtures("group_of_one")


def parameters_with_gradients():
    generator = torch.Generator().manual_seed(2)
    parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in [(300, 40), (40,), (7, 5)]]
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    return [*parameters, torch.nn.Parameter(torch.zeros(3))]  # the last has no gradient


@pytest.mark.parametrize("limit", [0.5, 1e6])
def test_gradients_are_clipped_as_torch_clips_them(limit):
    ours, theirs = parameters_with_gradients(), parameters_with_gradients()
    norm = clip_gradients(ours, limit)
    assert norm.dtype == torch.float64
    assert norm.item() == pytest.approx(torch.nn.utils.clip_grad_norm_(theirs, limit).item(), rel=1e-7)
    for our, their in zip(ours[:3], theirs[:3], strict=True):
        torch.testing.assert_close(our.grad, their.grad, rtol=1e-6, atol=0)


def test_matrices_decay_and_norms_do_not():
    sizes = {"num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8}
    model = Transformer(LlamaRecipe(**sizes, tie_word_embeddings=True), 11)
    built = registry.build(model, OptimizerRecipe(weight_decay=0.3))
    decay = {id(parameter): group["weight_decay"] for group in built.param_groups for parameter in group["params"]}
    named = dict(model.named_parameters())
    assert len(decay) == len(named)
    for name, parameter in named.items():
        assert decay[id(parameter)] == (0.0 if "ln" in name or "norm" in name else 0.3)


def stepped(moments, steps, dtype=torch.float32, beta2=0.95):
    """A matrix and a norm's vector after some steps, whose gradients are the same for all `moments`."""
    module = torch.nn.Linear(30, 20).to(dtype)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(generator=generator)
    built = registry.build(module, OptimizerRecipe(learning_rate=1e-2, beta2=beta2, state_dtype=moments))
    for _ in range(steps):
        for parameter in module.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=dtype)
        built.step()
    return module, built


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("elements", [64, 1 << 18])
def test_the_first_step_with_moments_in_bfloat16_has_the_bits_of_adamws(dtype, elements, monkeypatch):
    monkeypatch.setattr(adamw, "CACHED", elements)
    (ours, _), (theirs, _) = (stepped(moments, 1, dtype) for moments in ("bfloat16", "float32"))
    assert_equal(ours.parameters(), theirs.parameters())


def test_later_steps_with_moments_in_bfloat16_stay_near_adamws():
    cases = [("bfloat16", 50), ("float32", 50), ("float32", 0)]
    (ours, _), (theirs, _), (start, _) = (stepped(*case) for case in cases)
    for our, their, first in zip(ours.parameters(), theirs.parameters(), start.parameters(), strict=True):
        assert 0 < (our - their).norm() < 0.02 * (their - first).norm()


def test_an_average_in_bfloat16_that_would_stand_still_is_refused():
    module, built = stepped("bfloat16", 1, beta2=0.999)
    before = built.state[module.weight]["exp_avg_sq"].clone()
    for _ in range(20):
        module.weight.grad = torch.zeros_like(module.weight)
        built.step()
    assert torch.equal(built.state[module.weight]["exp_avg_sq"], before)  # 2% less would be right
    with pytest.raises(
        UserError, match="optimizer.beta2 must be less than 0.9961 with state_dtype bfloat16, .* got 0.999"
    ):
        recipe.load(OptimizerRecipe, {"state_dtype": "bfloat16", "beta2": 0.999}, "optimizer")
    assert recipe.load(OptimizerRecipe, {"state_dtype": "bfloat16", "beta2": 0.99}, "optimizer").beta2 == 0.99


def assert_equal(ours, theirs):
    for our, their in zip(ours, theirs, strict=True):
        assert torch.equal(our, their)
