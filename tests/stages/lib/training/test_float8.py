"""Products in float8 against float64, with bounds that follow from the formats. torch has them on CPUs, too.

e4m3 has 3 bits after the point and e5m2 has 2, so rounding moves a value by at most 1/16 and 1/8 of it.
"""

import pytest
import torch
from torch import nn

from stages.lib import recipe
from stages.lib.distributed.process_group import process_group
from stages.lib.model.architectures import ARCHITECTURES
from stages.lib.model.initialize import initialize
from stages.lib.model.transformer import Attention, Transformer
from stages.lib.training import float8, parallelize
from stages.lib.training.settings.recipe import ActivationCheckpointingRecipe
from tests.helpers.ranks import run_module
from tests.helpers.training import MODEL
from tests.stages.lib.training import float8_steps

ROUNDING = {float8.VALUES: 1 / 16, float8.GRADIENTS: 1 / 8}
SIZES = MODEL | {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
BLOCK = ["attn.in_proj.qkv_fused", "attn.dense", "ff_sub_layer.wg1_fused", "ff_sub_layer.w2"]


def random(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def seen(made):
    """The values that a cast stands for, float64."""
    values, scale = made
    return values.double() * scale.double()


def built(architecture="llama"):
    model = Transformer(recipe.load(ARCHITECTURES, SIZES | {"architecture": architecture}, "model"), 64)
    initialize(model, seed=1)
    model.bfloat16()
    float8.apply(model)
    return model


def gradients(model):
    tokens = torch.arange(32).view(2, 16)
    model(tokens, tokens.roll(-1))[0].backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("size", [1e-20, 1e-4, 1.0, 3e4])
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_a_cast_moves_a_value_by_its_rounding_alone(dtype, size, precision):
    x = (random(64, 64) * size).to(precision)
    made = float8.cast(x, dtype)
    exponent = torch.log2(made[1]).item()
    assert exponent == round(exponent)
    largest = x.abs().max().double()
    underflow = largest / torch.finfo(dtype).max * 2 * torch.finfo(dtype).smallest_normal
    bound = x.double().abs() * ROUNDING[dtype] + underflow
    assert ((seen(made) - x.double()).abs() <= bound).all()
    assert made[0].double().abs().max() > torch.finfo(dtype).max / 2.3  # of the range at most one bit is unused


def test_other_values_of_a_tensor_do_not_change_a_rounding():
    row = random(1, 64).abs() + 0.1
    alone = seen(float8.cast(row, float8.VALUES))
    beside_larger = seen(float8.cast(torch.cat([row, 20 * row]), float8.VALUES))
    assert torch.equal(alone[0], beside_larger[0])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_value_that_is_not_finite_is_not_hidden(bad):
    x = random(16, 32)
    x[3, 5] = bad
    product = float8.multiply(float8.cast(x, float8.VALUES), float8.cast(random(16, 32), float8.VALUES), torch.float32)
    assert not product[3].isfinite().any()


def test_a_tensor_of_zeros_stays_zero():
    for dtype in ROUNDING:
        values, scale = float8.cast(torch.zeros(16, 16), dtype)
        assert not values.float().any() and scale.isfinite()


@pytest.mark.parametrize(("precision", "exact"), [(torch.float32, 1e-5), (torch.bfloat16, 2**-8)])
@pytest.mark.parametrize("bias", [False, True])
def test_a_linear_layer_and_its_gradients_are_those_of_float64(precision, exact, bias):
    layer = nn.Linear(64, 48, bias=bias)
    layer.__class__ = float8.Float8Linear
    x, grad = random(2, 16, 64, dtype=precision).requires_grad_(), random(2, 16, 48, seed=1, dtype=precision)
    y = layer(x)
    y.backward(grad)
    weight, added = layer.weight.detach().to(precision), layer.bias.detach().to(precision).double() if bias else 0
    exact_x, exact_grad = x.detach().flatten(0, 1), grad.flatten(0, 1)
    cast_x, cast_weight = (seen(float8.cast(tensor, float8.VALUES)) for tensor in (exact_x, weight))
    cast_grad = seen(float8.cast(exact_grad, float8.GRADIENTS))
    products = {
        "output": (y.flatten(0, 1), (cast_x, cast_weight.t()), (exact_x, weight.t()), added),
        "input": (x.grad.flatten(0, 1), (cast_grad, cast_weight), (exact_grad, weight), 0),
        "weight": (layer.weight.grad, (cast_grad.t(), cast_x), (exact_grad.t(), exact_x), 0),
    }
    for name, (found, casts, values, constant) in products.items():
        reference = casts[0] @ casts[1] + constant
        assert (found.double() - reference).abs().max() <= 2 * exact * reference.abs().max(), name
        true = values[0].double() @ values[1].double() + constant
        assert (found.double() - true).norm() <= 0.08 * true.norm(), name  # root of the sum of both factors' rounding
    assert found.dtype == layer.weight.dtype == torch.float32
    if bias:
        assert torch.equal(layer.bias.grad, exact_grad.sum(0).float())


def test_only_the_matrices_of_blocks_are_multiplied_in_float8_and_no_key_changes():
    plain = Transformer(recipe.load(ARCHITECTURES, SIZES, "model"), 64)
    model = built()
    assert list(model.state_dict()) == list(plain.state_dict())
    found = [name for name, module in model.named_modules() if isinstance(module, float8.Float8Linear)]
    assert found == [f"base_model.layers.0.{name}" for name in BLOCK]


@pytest.mark.parametrize("mode", ["selective", "full"])
def test_activation_checkpointing_changes_no_gradient(mode):
    plain, model = gradients(built()), built()
    parallelize.apply_activation_checkpointing(model, ActivationCheckpointingRecipe(mode=mode))
    again = gradients(model)
    assert all(torch.equal(plain[name], again[name]) for name in plain)


def test_a_block_is_one_graph_of_torch_compile():
    plain, model = gradients(built("qwen3")), built("qwen3")
    for block in model.base_model.layers:
        block.forward = torch.compile(block.forward, backend="aot_eager", fullgraph=True)
    again = gradients(model)
    for name in plain:
        torch.testing.assert_close(again[name], plain[name], rtol=0.05, atol=0.05 * plain[name].abs().max().item())


def test_the_rotation_is_computed_in_float32_and_all_else_of_mixed_precision_in_bfloat16(monkeypatch):
    dtypes, project = set(), Attention.project

    def recorded(attention, x, cosine, sine):
        projected = project(attention, x, cosine, sine)
        dtypes.add((x.dtype, projected[0].dtype, cosine.dtype, sine.dtype))
        return projected

    monkeypatch.setattr(Attention, "project", recorded)
    with process_group() as device:
        float8_steps.losses(device, 1, dtype="bfloat16", float8=False)
    assert dtypes == {(torch.bfloat16, torch.bfloat16, torch.float32, torch.float32)}


@pytest.mark.long
def test_ranks_and_shardings_train_the_same_model(tmp_path):
    found = {}
    for ranks in (1, 2):
        for sharding in ("full", "none"):
            output = tmp_path / f"{ranks}-{sharding}"
            code, printed = run_module(ranks, "tests.stages.lib.training.float8_steps", [sharding, output])
            assert code == 0, printed
            found[ranks, sharding] = [float(loss) for loss in output.read_text().split()]
    assert found[1, "full"] == found[1, "none"]
    assert found[2, "full"] == pytest.approx(found[1, "full"], rel=1e-4)
    assert found[2, "none"] == pytest.approx(found[1, "full"], rel=1e-4)
