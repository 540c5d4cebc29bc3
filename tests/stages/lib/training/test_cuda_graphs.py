"""CUDA graphs without a GPU: the weights that layers cast themselves, and the replay of a micro-batch by a stand-in."""

import pytest
import torch

from stages.lib.training import parallelize
from stages.lib.training.cuda_graphs import WARM_UP, MicroBatchGraph
from tests.helpers import recorded_graph
from tests.helpers.recorded_graph import RecordedGraph
from tests.stages.lib.training import float8_steps

CPU = torch.device("cpu")
PLAIN = {"float8": False, "global_batch_size": 4, "micro_batch_size": 2}


def trained(steps=3, **keys):
    """Return the losses of some steps, and the weights after them."""
    losses, state = float8_steps.losses(CPU, steps, **PLAIN | keys)
    tensors = state.model.state_dict()
    return losses, {name: getattr(tensor, "_local_tensor", tensor) for name, tensor in tensors.items()}


def same(a, b):
    return a[0] == b[0] and list(a[1]) == list(b[1]) and all(torch.equal(a[1][name], b[1][name]) for name in a[1])


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"float8": True, "micro_batch_size": 4},
        {"activation_checkpointing": {"mode": "selective"}},
        {"activation_checkpointing": {"mode": "full"}},
        {"dtype": "float32"},
        {"model": {"tie_word_embeddings": True}},
        {"model": {"architecture": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}},
        {"model": {"architecture": "qwen3"}},
    ],
)
def test_layers_that_cast_their_weights_train_the_same_bits_as_fsdp(group_of_one, monkeypatch, keys):
    cast = trained(**keys)
    monkeypatch.setattr(parallelize, "uses_fsdp", lambda recipe: True)
    assert same(cast, trained(**keys))


@pytest.fixture
def graphs(monkeypatch):
    """Let a stepper make graphs on the CPU."""
    recorded_graph.install(monkeypatch)
    made = []

    def stepper(recipe, state, device):
        from stages.lib.training.step import Stepper

        found = Stepper(recipe, state, device)
        if recipe.cuda_graphs:
            found.graph = MicroBatchGraph(found._passes, state.model)
            made.append(found.graph)
        return found

    monkeypatch.setattr(float8_steps, "Stepper", stepper)
    return made


@pytest.mark.parametrize("keys", [{}, {"activation_checkpointing": {"mode": "full"}}, {"z_loss": 1e-3}])
def test_replayed_micro_batches_train_the_same_bits(group_of_one, graphs, keys):
    num_steps = 5
    assert same(trained(num_steps, **keys), trained(num_steps, cuda_graphs=True, **keys))
    assert RecordedGraph.made == 1
    assert graphs[0].graph.num_replays == 2 * num_steps - WARM_UP


def test_gradients_keep_their_memory(group_of_one, graphs):
    _, state = float8_steps.losses(CPU, 4, **PLAIN, cuda_graphs=True)
    before = {name: parameter.grad.data_ptr() for name, parameter in state.model.named_parameters()}
    graphs[0].zero_gradients()
    for name, parameter in state.model.named_parameters():
        assert parameter.grad.data_ptr() == before[name] and not parameter.grad.any()
