"""The key table against the model itself; test_export.py and test_load_hf.py hold it against transformers."""

import pytest
import torch

from stages.lib.model import key_table
from stages.lib.model.architectures.llama import LlamaRecipe
from stages.lib.model.architectures.registry import ARCHITECTURES
from stages.lib.model.transformer import Transformer

SMALL = {
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
}
VOCABULARY = 70


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(("name", "architecture"), ARCHITECTURES.types.items(), ids=ARCHITECTURES.types)
def test_keys_and_shapes_are_those_of_the_model(name, architecture, tied):
    config = architecture(architecture=name, **SMALL, tie_word_embeddings=tied)
    table = key_table.build(config, VOCABULARY)
    with torch.device("meta"):
        model = Transformer(config, VOCABULARY)
    assert {weight.key: weight.shape for weight in table.weights} == {
        name: list(parameter.shape) for name, parameter in model.named_parameters()
    }
    assert {key: weight.shape for key, weight in table.by_key.items()} == {
        key: list(tensor.shape) for key, tensor in model.state_dict().items()
    }


def test_the_matrices_before_a_residual_are_those_of_attention_and_feed_forward():
    layer = key_table.build(LlamaRecipe(**SMALL), VOCABULARY).layers[1]
    assert [weight.key for weight in layer if weight.into_residual] == [
        "base_model.layers.1.attn.dense.weight",
        "base_model.layers.1.ff_sub_layer.w2.weight",
    ]
