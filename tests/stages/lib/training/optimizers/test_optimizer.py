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
    norm = clip_gradients(adamw.AdamW(ours), limit)
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


def stepped(moments, steps, dtype=torch.float32, beta2=0.95, scale=None, skipped=()):
    """A matrix and a norm's vector after some steps, whose gradients are the same for all `moments`."""
    module = torch.nn.Linear(30, 20).to(dtype)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(generator=generator)
    built = registry.build(module, OptimizerRecipe(learning_rate=1e-2, beta2=beta2, state_dtype=moments))
    for step in range(steps):
        for parameter in module.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=dtype)
        if scale is not None:
            built.scale_gradients(torch.tensor(scale, dtype=torch.float64))
        registry.skip_if(built, torch.tensor(float(step in skipped)))
        built.step()
    return module, built


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("elements", [64, 1 << 18])
def test_the_first_step_with_moments_in_bfloat16_has_the_bits_of_adamws(dtype, elements, monkeypatch):
    monkeypatch.setattr(adamw, "CACHED", elements)
    (ours, _), (theirs, _) = (stepped(moments, 1, dtype) for moments in ("bfloat16", "float32"))
    assert all(map(torch.equal, ours.parameters(), theirs.parameters()))


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kernel_of_a_gpu_takes_the_steps_of_a_cpu(dtype, monkeypatch):
    by_parts, reference = stepped("bfloat16", 4, dtype, scale=0.3, skipped=(2,))
    monkeypatch.setattr(adamw, "has_fused_kernel", lambda _: True)
    module, built = stepped("bfloat16", 4, dtype, scale=0.3, skipped=(2,))
    tolerance = {"rtol": 1e-6, "atol": 1e-7} if dtype == torch.float32 else {"rtol": 2**-7, "atol": 0}
    for ours, theirs in zip(module.parameters(), by_parts.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, **tolerance)
        for name in adamw.MOMENTS:
            torch.testing.assert_close(built.state[ours][name], reference.state[theirs][name], rtol=2**-7, atol=1e-9)
        assert built.state[ours]["step"] == reference.state[theirs]["step"] == 3


def test_weights_are_rounded_by_chance_to_their_value_on_average():
    values = torch.tensor([1.0, 1 + 2**-9, -3 - 2**-8, 1e-30, 0.0, float("inf")]).repeat(20_000, 1).T.flatten()
    keys = [torch.tensor(key, dtype=torch.int32) for key in (1, 2)]
    first, second = (adamw.round_by_chance(values, key).view(6, -1) for key in keys)
    expected = values.view(6, -1)[:, 0]
    assert torch.equal(first.unique(dim=1).amax(1)[[0, 4, 5]], expected[[0, 4, 5]].bfloat16())
    for row, value in zip(first[1:4], expected[1:4].double(), strict=True):
        below, above = row.double().unique().tolist()
        assert below < value < above
        spread = 4 * (above - below) / 2 / 20_000**0.5
        assert abs(row.double().mean() - value) < spread
    agreement = (first[1] == second[1]).double().mean()
    assert abs(agreement - (0.25**2 + 0.75**2)) < 0.02  # of independent draws
    parts = [adamw.round_by_chance(part, keys[0], start) for part, start in ((values[:70], 0), (values[70:], 70))]
    assert torch.equal(torch.cat(parts)[:-20_000], first.flatten()[:-20_000])
