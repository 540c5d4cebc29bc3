"""The parity check of models: the differences that it finds, and the names that it gives them."""

import pytest
import torch

from stages.lib.huggingface import config_json, export, parity
from stages.lib.model.llama_config import ModelRecipe
from tests.helpers.export_fixtures import random_model, write_settings

RECIPE = ModelRecipe(
    num_hidden_layers=3,
    hidden_size=32,
    num_attention_heads=4,
    num_key_value_heads=2,
    intermediate_size=48,
    max_position_embeddings=128,
)
VOCABULARY = 64
TOKENS = torch.arange(40).unsqueeze(0)


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    """The export of the model of `ours()`, as transformers loads it."""
    directory = tmp_path_factory.mktemp("export")
    state = ours().state_dict()
    export.write_weights(directory, RECIPE, VOCABULARY, lambda keys: {key: state[key] for key in keys}, "float32", 10)
    tokenizer = {"vocab_size": VOCABULARY, "bos": 1, "eos": 2, "bos_added": True}
    write_settings(directory, config_json.config_of(RECIPE, tokenizer, "float32"))
    return parity.load_exported(directory)


def ours():
    """Always the same random model."""
    return random_model(RECIPE, VOCABULARY)


def changed(name, change):
    """The model with one weight changed in place."""
    model = ours()
    with torch.no_grad():
        change(model.get_parameter(name))
    return model


def swap_halves(weight):
    """Gate and up swapped, the mistake of FMS's own converter."""
    weight.copy_(torch.cat(weight.chunk(2)[::-1]))


@pytest.mark.parametrize(
    ("weight", "place"),
    [
        ("base_model.embedding.weight", "the embedding"),
        ("base_model.layers.0.ff_sub_layer.wg1_fused.weight", "layer 0"),
        ("base_model.layers.2.attn.in_proj.qkv_fused.weight", "layer 2"),
        ("base_model.dec_norm.weight", "the last norm"),
        ("head.weight", "the head"),
    ],
)
def test_the_first_layer_that_differs_is_named(theirs, weight, place):
    change = swap_halves if "wg1" in weight else (lambda tensor: tensor.mul_(1.1))
    with pytest.raises(parity.ParityError, match=f"first to differ is {place}"):
        parity.compare_logits(changed(weight, change), theirs, [TOKENS], 1e-4)


def test_a_weight_that_is_not_a_number_differs(theirs):
    broken = changed("base_model.layers.1.ln.weight", lambda tensor: tensor.fill_(float("nan")))
    with pytest.raises(parity.ParityError, match="layer 1"):
        parity.compare_logits(broken, theirs, [TOKENS], 1e-4)


def test_greedy_text_is_the_same(theirs):
    prompts = TOKENS.view(4, 10)
    text = parity.compare_text(ours(), theirs, prompts, 1e-4)
    assert text.shape == (4, 10 + parity.NEW_TOKENS)
    assert torch.equal(text[:, :10], prompts)


def test_greedy_text_that_diverges_is_found(theirs):
    broken = changed("head.weight", lambda tensor: tensor.copy_(tensor.roll(1, 0)))
    with pytest.raises(parity.ParityError, match="diverges after 0 tokens"):
        parity.compare_text(broken, theirs, TOKENS.view(4, 10), 1e-4)


def test_a_missing_weight_is_refused(tmp_path):
    state = ours().state_dict()
    other = ModelRecipe(**{**vars(RECIPE), "num_hidden_layers": 2})
    export.write_weights(tmp_path, other, VOCABULARY, lambda keys: {key: state[key] for key in keys}, "float32", 10)
    tokenizer = {"vocab_size": VOCABULARY, "bos": 1, "eos": 2, "bos_added": True}
    write_settings(tmp_path, config_json.config_of(RECIPE, tokenizer, "float32"))
    with pytest.raises(parity.ParityError, match=r"model\.layers\.2"):
        parity.load_exported(tmp_path)
