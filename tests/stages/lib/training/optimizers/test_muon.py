"""Muon: its orthogonalization, its step against torch.optim.Muon on transformers' matrices, its state."""

import contextlib

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.optim import _muon as torch_muon

from stages.lib import recipe, stage
from stages.lib.distributed import row_exchange
from stages.lib.distributed.process_group import process_group
from stages.lib.distributed.row_exchange import Matrix
from stages.lib.errors import UserError
from stages.lib.huggingface.export import hf_tensors
from stages.lib.model import key_table
from stages.lib.model.architectures import ARCHITECTURES, LlamaRecipe
from stages.lib.model.initialize import initialize
from stages.lib.model.transformer import Transformer
from stages.lib.training import parallelize
from stages.lib.training.optimizers import muon, registry
from stages.lib.training.optimizers.optimizer import set_learning_rate
from stages.lib.training.optimizers.recipe import MATRIX_OPTIMIZERS, OptimizerRecipe
from stages.lib.training.settings.recipe import TrainRecipe
from tests.helpers.ranks import run_module
from tests.helpers.training import MODEL, MODELS

pytestmark = pytest.mark.usefixtures("group_of_one")

SHAPES = [(24, 24), (40, 24), (24, 40), (1, 7)]


def by_svd(matrix, coefficients=muon.COEFFICIENTS, steps=5, eps=1e-7):
    """The result of Newton-Schulz, from its polynomial on the singular values; arguments as of torch's function."""
    a, b, c = coefficients
    left, values, right = torch.linalg.svd(matrix.double(), full_matrices=False)
    values = values / values.norm().clamp(min=eps)
    for _ in range(steps):
        values = a * values + b * values**3 + c * values**5
    return (left * values) @ right


def small_model(dtype=torch.float32, **keys):
    """A model of random weights with grouped queries."""
    model = Transformer(recipe.load(ARCHITECTURES, MODEL | keys, "model"), 70).to(dtype)
    initialize(model, seed=3)
    return model


def set_gradients(model, seed):
    """Random gradients."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(parameter.dtype)


def layers_of(model, tensors):
    """The matrices of all layers, as transformers has them: {Hugging Face key: tensor}."""
    weights = [weight for layer in key_table.build(model.recipe, 70).layers for weight in layer if weight.columns]
    return {name: tensor.detach().clone() for name, tensor in hf_tensors(tensors, weights).items()}


@pytest.mark.parametrize("shape", SHAPES)
def test_orthogonalization_maps_the_singular_values_by_the_polynomial(shape):
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = muon.newton_schulz(matrix, 5)
    torch.testing.assert_close(found, by_svd(matrix), rtol=1e-10, atol=1e-12)
    assert 0.6 < torch.linalg.svdvals(found).max() < 1.25
    assert not muon.newton_schulz(torch.zeros(shape), 5).any()


@pytest.mark.parametrize("shape", SHAPES)
def test_orthogonalization_in_bfloat16_is_torchs_bit_for_bit(shape):
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(1)).bfloat16()
    theirs = torch_muon._zeropower_via_newtonschulz(matrix.clone(), muon.COEFFICIENTS, 5, muon.EPS)
    assert torch.equal(muon.newton_schulz(matrix, 5), theirs)


OPTIONS = [{"adjust_lr_fn": "original", "learning_rate": 0.05}, {"nesterov": False, "momentum": 0.8, "ns_steps": 3}]


@pytest.mark.parametrize(
    ("architecture", "options"),
    [*(("llama", options) for options in OPTIONS), *((name, {}) for name in MODELS)],
    ids=str,
)
def test_steps_are_those_of_torch_on_the_matrices_of_transformers(monkeypatch, architecture, options):
    monkeypatch.setattr(torch_muon, "_zeropower_via_newtonschulz", by_svd)  # torch's own has 3 digits
    model = small_model(torch.float64, **MODELS[architecture])
    before = layers_of(model, model.state_dict())
    theirs = {name: torch.nn.Parameter(tensor.clone()) for name, tensor in before.items()}
    own = {"adjust_lr_fn": "match_rms_adamw"} | options
    rate = own.pop("learning_rate", 0.01)
    reference = torch.optim.Muon(theirs.values(), lr=rate, weight_decay=0.2, **own)
    keys = {"name": "muon", "weight_decay": 0.2, "muon": options}
    built = registry.build(model, recipe.load(OptimizerRecipe, keys, "optimizer"))
    for step in range(3):
        set_gradients(model, step)
        gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
        for name, gradient in layers_of(model, gradients).items():
            theirs[name].grad = gradient
        set_learning_rate(built.param_groups, rate if "learning_rate" not in options else 3e-4)
        built.step()
        reference.step()
    for name, tensor in layers_of(model, model.state_dict()).items():
        assert (tensor - before[name]).abs().max() > 1e-3
        torch.testing.assert_close(tensor, theirs[name].detach(), rtol=1e-9, atol=1e-11)


def test_steps_of_normuon_are_those_of_its_paper_on_the_matrices_of_transformers():
    model = small_model(torch.float64)
    weights = layers_of(model, model.state_dict())
    momenta, seconds = ({name: torch.zeros(()) for name in weights} for _ in range(2))
    recipe_keys = {"name": "normuon", "weight_decay": 0.2, "normuon": {"beta2": 0.7, "momentum": 0.8}}
    built = registry.build(model, recipe.load(OptimizerRecipe, recipe_keys, "optimizer"))
    for step in range(3):
        set_gradients(model, step)
        gradients = layers_of(model, {name: parameter.grad for name, parameter in model.named_parameters()})
        set_learning_rate(built.param_groups, 0.01)
        built.step()
        for name, gradient in gradients.items():
            momenta[name] = 0.8 * momenta[name] + 0.2 * gradient
            change = by_svd(0.2 * gradient + 0.8 * momenta[name])
            seconds[name] = 0.7 * seconds[name] + 0.3 * (change**2).mean(1)
            even = change / seconds[name].sqrt()[:, None]
            rate = 0.01 * 0.2 * max(change.shape) ** 0.5 * change.norm() / even.norm()
            weights[name] = weights[name] * (1 - 0.01 * 0.2) - rate * even
    for name, tensor in layers_of(model, model.state_dict()).items():
        torch.testing.assert_close(tensor, weights[name], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("tied", [True, False])
def test_embedding_head_and_norms_are_updated_by_adamw(tied):
    ours, theirs = small_model(tie_word_embeddings=tied), small_model(tie_word_embeddings=tied)
    for model, name in ((ours, "muon"), (theirs, "adamw")):
        built = registry.build(model, OptimizerRecipe(name=name, weight_decay=0.3))
        assert sum(len(group["params"]) for group in built.param_groups) == len(list(model.parameters()))
        for step in range(2):
            set_gradients(model, step)
            built.step()
    equal = {name for name, tensor in ours.named_parameters() if torch.equal(tensor, theirs.get_parameter(name))}
    assert equal == {name for name, tensor in ours.named_parameters() if "layers" not in name or tensor.dim() == 1}


@pytest.mark.parametrize(("state_dtype", "dtype"), [("float32", torch.float32), ("bfloat16", torch.bfloat16)])
def test_momentum_has_half_the_bytes_of_adamws_moments(state_dtype, dtype):
    model = small_model()
    muon, adamw = (registry.build(model, OptimizerRecipe(name=n, state_dtype=state_dtype)) for n in ("muon", "adamw"))
    before = {
        name: (state.keys(), *map(torch.clone, state.values()))
        for name, state in registry.named_state(model, muon).items()
    }
    set_gradients(model, 1)
    muon.step()
    for name, state in registry.named_state(model, muon).items():
        parameter = model.get_parameter(name)
        is_matrix = "layers" in name and parameter.dim() == 2
        assert muon.state_bytes(parameter) * (2 if is_matrix else 1) == adamw.state_bytes(parameter)
        assert (
            before[name][0]
            == state.keys()
            == ({"momentum_buffer"} if is_matrix else adamw.empty_state(parameter).keys())
        )
        for first, tensor in zip(before[name][1:], state.values(), strict=True):
            assert not first.any()
            assert (first.shape, first.dtype) == (tensor.shape, tensor.dtype)
        kept = [tensor for tensor in state.values() if tensor.shape == parameter.shape]
        assert {tensor.dtype for tensor in kept} == {dtype}
        assert sum(tensor.element_size() for tensor in kept) == muon.state_bytes(parameter)


def test_steps_with_the_momentum_in_bfloat16_stay_near_the_others():
    models = {state_dtype: small_model() for state_dtype in ("float32", "bfloat16")}
    start = layers_of(models["float32"], models["float32"].state_dict())
    for state_dtype, model in models.items():
        built = registry.build(model, OptimizerRecipe(name="muon", state_dtype=state_dtype, learning_rate=1e-2))
        for step in range(30):
            set_gradients(model, step)
            built.step()
    exact, rounded = (layers_of(model, model.state_dict()) for model in models.values())
    for name, tensor in exact.items():
        assert 0 < (rounded[name] - tensor).norm() < 0.03 * (tensor - start[name]).norm(), name


@pytest.mark.parametrize("name", ["adamw", "muon", "normuon"])
@pytest.mark.parametrize("state_dtype", ["float32", "bfloat16"])
def test_flagged_step_changes_nothing_and_the_next_goes_on(name, state_dtype):
    results = []
    for skips in (True, False):
        model = small_model()
        built = registry.build(model, OptimizerRecipe(name=name, state_dtype=state_dtype))
        set_gradients(model, 1)
        built.step()
        if skips:
            before = everything(model, built)
            for parameter in model.parameters():
                parameter.grad.fill_(float("nan"))
            registry.skip_if(built, torch.ones((), dtype=torch.float64))
            built.step()
            assert all(map(torch.equal, everything(model, built), before))
            registry.skip_if(built, torch.zeros(()))
        set_gradients(model, 2)
        built.step()
        results.append(everything(model, built))
    assert all(map(torch.equal, *results))


def everything(model, built):
    """All that a step changes."""
    tensors = [
        *model.parameters(),
        *(tensor for state in registry.named_state(model, built).values() for tensor in state.values()),
    ]
    return [tensor.detach().clone() for tensor in tensors]


@pytest.mark.parametrize("ranks", [2, 4])
def test_sharded_steps_are_those_of_one_rank(ranks):
    code, printed = run_module(ranks, "tests.stages.lib.training.optimizers.test_muon", [])
    assert code == 0, printed


TINY = LlamaRecipe(
    num_hidden_layers=3, hidden_size=6, num_attention_heads=3, num_key_value_heads=1, intermediate_size=5
)
# each shard is whole vectors of the CPU, whose kernel rounds the rest of a tensor otherwise
ALIGNED = LlamaRecipe(num_hidden_layers=1, hidden_size=64, num_attention_heads=4, intermediate_size=48)
SHARDINGS = [{"sharding": "full"}, {"sharding": "none"}, {"sharding": "hybrid-full", "shard_degree": 2}]
OF_MATRICES = [OptimizerRecipe(name=name, learning_rate=0.1) for name in MATRIX_OPTIMIZERS]


def stepped(device, keys, model_config, optimizer, dtype):
    """(Whole weights and state after three steps, the optimizer); without `keys` the model is not sharded.

    Shards are uneven, and some are empty on four ranks; weights in bfloat16 are rounded by chance. The second of the
    steps is skipped.
    """
    with torch.device("meta"):
        model = Transformer(model_config, 13).to(dtype)
    if keys:
        train = TrainRecipe(steps=1, seq_len=48, global_batch_size=4, dtype=str(dtype).split(".")[1], **keys)
        parallelize.shard(model, train, device)
    else:
        model.to_empty(device=device)
    initialize(model, seed=3)
    built = registry.build(model, optimizer)
    for skipped in (False, True, False):
        for parameter in model.parameters():
            grown = parameter.detach() ** 2 + parameter.detach()
            parameter.grad = torch.full_like(parameter, float("nan")) if skipped else grown
        registry.skip_if(built, torch.tensor(float(skipped)))
        built.step()
    tensors = {name: parameter.detach() for name, parameter in model.named_parameters()}
    for name, state in registry.named_state(model, built).items():
        tensors |= {f"{name} {key}": tensor for key, tensor in state.items()}
    whole = {name: t.full_tensor() if isinstance(t, DTensor) else t for name, t in tensors.items()}
    return whole, built


@contextlib.contextmanager
def smallest_rounds():
    """Let each owner have one matrix per round."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_exchange, "OWNED_BYTES", 1)
        yield


def check_shardings(device):
    """On each rank: steps of a sharded model are those of a whole one, with every sharding and optimizer."""
    shardings = SHARDINGS[: None if dist.get_world_size() == 4 else 2]
    for optimizer in OF_MATRICES:
        expected, _ = stepped(device, {}, TINY, optimizer, torch.float64)
        assert all(tensor.isfinite().all() for tensor in expected.values())
        for keys in shardings:
            for rounds, expected_rounds in ((contextlib.nullcontext(), 1), (smallest_rounds(), None)):
                with rounds:
                    found, built = stepped(device, keys, TINY, optimizer, torch.float64)
                num_rounds = len(built.optimizers[0].exchange.rounds)
                assert num_rounds == expected_rounds or num_rounds > 1
                for name, tensor in expected.items():
                    torch.testing.assert_close(found[name], tensor, rtol=1e-12, atol=1e-13, msg=f"{keys}: {name}")
    for state, dtype in (("float32", torch.float32), ("bfloat16", torch.float32), ("bfloat16", torch.bfloat16)):
        adamw = OptimizerRecipe(state_dtype=state)
        expected, _ = stepped(device, {}, ALIGNED, adamw, dtype)
        assert all(tensor.isfinite().all() for tensor in expected.values())
        for keys in shardings:
            found, _ = stepped(device, keys, ALIGNED, adamw, dtype)
            assert all(torch.equal(found[name], tensor) for name, tensor in expected.items()), keys


def test_work_is_balanced_among_ranks_and_rounds_need_little_memory():
    shapes = [(4096, 4096), (1024, 4096), (1024, 4096), (4096, 4096), *[(14336, 4096)] * 2, (4096, 14336)] * 32
    matrices = [
        Matrix(parameter=torch.empty(shape, device="meta"), first=0, rows=shape[0]) for shape in shapes
    ]  # those of an 8B model
    costs = [muon.cost(*shape) for shape in shapes]
    owned = row_exchange.assign(matrices, costs, 16)
    work = [0.0] * 16
    for matrix, rank in owned:
        work[rank] += muon.cost(matrix.rows, matrix.columns)
    assert max(work) < 1.02 * sum(work) / 16
    rounds = row_exchange.rounds_of(owned, num_shards=16, itemsize=2)
    assert [pair for members in rounds for pair in members] == owned
    largest = 14336 * 4096 * 2
    for members in rounds:
        sizes = [0] * 16
        for matrix, rank in members:
            sizes[rank] += matrix.rows * matrix.columns * 2
        assert max(sizes) <= max(largest, row_exchange.OWNED_BYTES)
    replicas = row_exchange.rounds_of(owned, num_shards=1, itemsize=2)
    assert max(sum(m.rows * m.columns * 2 for m, _ in members) for members in replicas) <= row_exchange.RECEIVED_BYTES


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"muon": {}}, "muon must be left out for name adamw; it is for name muon only"),
        ({"name": "normuon", "muon": {}}, "muon must be left out for name normuon; it is for name muon only"),
        ({"name": "muon", "muon": {"momentum": 0.999}, "state_dtype": "bfloat16"}, "muon.momentum must be less than"),
    ],
)
def test_keys_that_make_no_sense_are_refused(keys, sentence):
    with pytest.raises(UserError, match="^optimizer.muon") as raised:
        recipe.load(OptimizerRecipe, keys, "optimizer")
    assert sentence in str(raised.value)


def test_defaults_of_muon_are_those_of_torch_except_the_learning_rate():
    theirs = torch.optim.Muon([torch.nn.Parameter(torch.zeros(2, 2))]).defaults
    built = recipe.load(OptimizerRecipe, {"name": "muon", "muon": {}}, "optimizer")
    assert recipe.written(built, "identity") == {"name": "muon"}
    ours = {name: getattr(built.muon, name) for name in ("momentum", "nesterov", "ns_steps")}
    assert ours == {name: theirs[name] for name in ours}
    assert (theirs["ns_coefficients"], theirs["eps"]) == (muon.COEFFICIENTS, muon.EPS)
    assert built.muon.adjust_lr_fn == "match_rms_adamw"


if __name__ == "__main__":
    with process_group() as on_device:
        check_shardings(on_device)
    stage.leave(0)
