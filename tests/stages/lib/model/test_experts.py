"""Sparse feed-forward layers beside transformers' own, and the auxiliary loss."""

import pytest
import torch
from torch.nn import functional
from transformers import MixtralConfig
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock, load_balancing_loss_func

from stages.lib.model import experts
from stages.lib.model.architectures import MixtralRecipe
from stages.lib.model.experts import SparseFeedForward, routing
from stages.lib.model.loss import IGNORED

D, F = 16, 24


@pytest.fixture(autouse=True)
def seed():
    """The same inputs in each run, whatever ran before."""
    torch.manual_seed(0)


def layers(num_experts, experts_per_token, dtype=torch.float32):
    """Our layer and transformers', with equal weights."""
    torch.manual_seed(0)
    shape = {"hidden_size": D, "intermediate_size": F}
    shape |= {"num_local_experts": num_experts, "num_experts_per_tok": experts_per_token}
    recipe = MixtralRecipe(architecture="mixtral", num_hidden_layers=1, num_attention_heads=1, **shape)
    ours, config = SparseFeedForward(recipe).to(dtype), MixtralConfig(**shape)
    config._experts_implementation = "eager"
    theirs = MixtralSparseMoeBlock(config).to(dtype)
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.normal_(std=0.3)
        theirs.gate.weight.copy_(ours.gate.weight)
        theirs.experts.gate_up_proj.copy_(ours.cond_ffn.w13.view(num_experts, 2 * F, D))
        theirs.experts.down_proj.copy_(ours.cond_ffn.w2.view(num_experts, D, F))
    return ours, theirs


@pytest.mark.parametrize(("num_experts", "experts_per_token"), [(8, 2), (5, 1), (3, 3), (32, 2)])
def test_the_layer_and_its_gradients_are_those_of_transformers(num_experts, experts_per_token):
    ours, theirs = layers(num_experts, experts_per_token)
    x = torch.randn(2, 7, D)
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    outputs = [ours(inputs[0])[0], theirs(inputs[1])]
    assert (outputs[0] - outputs[1]).abs().max() < 1e-5
    upstream = torch.randn_like(x)
    for output in outputs:
        output.backward(upstream)
    pairs = {
        "x": (inputs[0].grad, inputs[1].grad),
        "gate": (ours.gate.weight.grad, theirs.gate.weight.grad),
        "w13": (ours.cond_ffn.w13.grad, theirs.experts.gate_up_proj.grad.flatten(0, 1)),
        "w2": (ours.cond_ffn.w2.grad, theirs.experts.down_proj.grad.flatten(0, 1)),
    }
    for name, (a, b) in pairs.items():
        assert (a - b).abs().max() < 1e-5, name


def test_the_layer_has_the_keys_and_outputs_of_ibm_fms():
    fms = pytest.importorskip("fms.modules.feedforward", reason="ibm-fms needs Python 3.12 or earlier")
    ours, theirs = layers(5, 2)[0], fms.MOEFeedForward(5, 2, D, F)
    own = ours.state_dict()
    state = {key: value if key == "gate.weight" else value.unflatten(0, (5, -1)) for key, value in own.items()}
    theirs.load_state_dict(state)
    x = torch.randn(2, 7, D)
    with torch.no_grad():
        assert (ours(x)[0] - theirs(x)).abs().max() < 1e-5


@pytest.mark.parametrize("sizes", [[4, 0, 6, 1], [0, 0, 11, 0], [11, 0, 0, 0]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_loop_and_the_grouped_kernel_agree(sizes, dtype):
    ends = torch.tensor(sizes).cumsum(0).int()
    x, matrices = torch.randn(11, D, dtype=dtype), torch.randn(4, F, D, dtype=dtype)
    results = []
    for product in (experts.looped_product, lambda x, m, ends: functional.grouped_mm(x, m.mT, offs=ends)):
        leaves = [x.clone().requires_grad_(), matrices.clone().requires_grad_()]
        y = product(*leaves, ends)
        y.float().square().sum().backward()
        results.append([y.detach(), *(leaf.grad for leaf in leaves)])
    for a, b in zip(*results, strict=True):
        assert torch.allclose(a, b, rtol=2 * torch.finfo(dtype).eps * D, atol=1e-3)


def test_float64_stays_float64():
    ours, _ = layers(4, 2, torch.float64)
    x = torch.randn(1, 9, D, dtype=torch.float64, requires_grad=True)
    y, probabilities = ours(x)
    assert y.dtype == probabilities.dtype == torch.float64
    assert torch.autograd.gradcheck(lambda x: ours(x)[0], x)


def test_the_auxiliary_loss_of_a_row_is_that_of_transformers():
    logits = torch.randn(1, 13, 8)
    targets = torch.randint(5, (1, 13))
    targets[0, 3:6] = IGNORED
    found = routing([logits.softmax(-1)], targets, 2)
    expected = load_balancing_loss_func((logits[0],), 8, 2, (targets != IGNORED).long())
    assert found.aux_loss.tolist() == pytest.approx([expected.item()])
    assert found.load.sum() == 2 * 10


def test_the_auxiliary_loss_of_a_row_depends_on_no_other_row():
    probabilities = [torch.randn(3, 5, 4).softmax(-1) for _ in range(2)]
    targets = torch.zeros(3, 5, dtype=torch.int64)
    targets[1] = IGNORED  # fills up a batch
    whole = routing(probabilities, targets, 2)
    alone = [routing([p[row : row + 1] for p in probabilities], targets[row : row + 1], 2) for row in range(3)]
    assert torch.equal(whole.aux_loss, torch.cat([part.aux_loss for part in alone]))
    assert torch.equal(whole.load, torch.cat([part.load for part in alone]))
    assert whole.aux_loss[1] == 0 and not whole.load[1].any()
