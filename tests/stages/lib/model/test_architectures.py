"""Every architecture against its class in transformers, on random configs."""

import dataclasses
import tempfile
from pathlib import Path

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings

from stages.lib import files, recipe
from stages.lib.errors import UserError
from stages.lib.huggingface.config_json import config_of, read_config, shape_of
from stages.lib.huggingface.load_hf import open_directory
from stages.lib.model.architectures import ARCHITECTURES
from stages.lib.model.generation import Cache, Sampler, continuations, next_logits
from stages.lib.model.transformer import Transformer
from stages.lib.parity import model_parity, parity
from tests.helpers.export_cases import TOKENIZER, VOCABULARY, write_export
from tests.helpers.export_fixtures import random_model

NAMES = ", ".join(ARCHITECTURES.types)
SMALL = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 8}
OWN_KEYS = {
    "llama": {"attention_bias": st.booleans()},
    "mistral": {"sliding_window": st.none() | st.integers(1, 80)},
    "mixtral": {
        "num_local_experts": st.integers(2, 6),
        "num_experts_per_tok": st.integers(1, 2),
        "router_aux_loss_coef": st.sampled_from((0.0, 0.001, 1.0)),
        "sliding_window": st.none() | st.integers(1, 80),
    },
    "qwen3": {},
}
"""Strategies of the keys that an architecture has beside those of all."""


@st.composite
def configs(draw, architecture):
    """A small config."""
    kv_heads, group, size = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.sampled_from((4, 6, 16)))
    heads = kv_heads * group
    keys = {
        "architecture": architecture,
        "num_hidden_layers": draw(st.integers(1, 3)),
        "hidden_size": draw(st.sampled_from((heads * size, heads * 10))),
        "head_dim": size,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": draw(st.integers(1, 50)),
        "tie_word_embeddings": draw(st.booleans()),
        "rope_theta": draw(st.sampled_from((1e4, 1e6))),
        "max_position_embeddings": 96,
    }
    return recipe.load(
        ARCHITECTURES, keys | {name: draw(values) for name, values in OWN_KEYS[architecture].items()}, "model"
    )


@pytest.mark.parametrize("architecture", ARCHITECTURES.types)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_exports_of_random_configs_give_the_logits_of_transformers(architecture, data):
    config = data.draw(configs(architecture))
    model = random_model(config, VOCABULARY)
    tokens = torch.randint(0, VOCABULARY, (2, 96), generator=torch.Generator().manual_seed(1))
    with tempfile.TemporaryDirectory() as directory:
        exported = write_export(Path(directory), config, model)
        theirs = parity.load_exported(exported.directory)  # raises if a key is missing or left over
        assert type(theirs).__name__ == config.hf_class
        with torch.inference_mode():
            assert (model.logits(tokens) - theirs(tokens).logits).abs().max() <= 1e-4
        model_parity.compare_blocks(exported, tokens, tolerance=1e-4)
        imported = open_directory(exported.directory)
        assert imported.model_config == dataclasses.replace(config, **written_short(config))
        for key, tensor in model.state_dict().items():
            assert torch.equal(imported.read([key])[key], tensor)


def written_short(config):
    """The keys that an import writes as their defaults, if that is what they mean."""
    is_default = config.head_size * config.num_attention_heads == config.hidden_size
    kv_heads = None if config.kv_heads == config.num_attention_heads else config.kv_heads
    return {"head_dim": None if is_default else config.head_size, "num_key_value_heads": kv_heads}


@pytest.mark.parametrize("architecture", ARCHITECTURES.types)
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_generation_with_the_cache_gives_the_logits_and_tokens_of_whole_forward_passes(architecture, data):
    config, length = data.draw(configs(architecture)), data.draw(st.sampled_from((1, 9)))
    model = random_model(config, VOCABULARY).double()
    tokens = prompt = torch.randint(0, VOCABULARY, (2, length), generator=torch.Generator().manual_seed(1))
    found = list(continuations(model, prompt, 30, Sampler(0, 1.0, [0, 0]), (), VOCABULARY))
    with torch.inference_mode():
        for _ in range(30):
            tokens = torch.cat([tokens, model.logits(tokens)[:, -1:].argmax(-1)], 1)
        assert torch.equal(torch.tensor(found).T, tokens[:, length:])
        cache = Cache(model, 2, tokens.shape[1])
        steps = [next_logits(model, part, cache) for part in (prompt, *tokens[:, length:].split(1, 1))]
        torch.testing.assert_close(torch.stack(steps, 1), model.logits(tokens)[:, length - 1 :], rtol=0, atol=1e-10)


@pytest.mark.parametrize("architecture", ARCHITECTURES.types)
def test_missing_keys_of_a_config_have_the_values_that_transformers_gives_them(architecture):
    from transformers import AutoConfig

    given = {"hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 32, "intermediate_size": 64}
    given |= {"model_type": architecture, "vocab_size": 100}
    with tempfile.TemporaryDirectory() as directory:
        files.write_json(Path(directory, "config.json"), given)
        loaded = AutoConfig.from_pretrained(directory)
    found, _ = read_config(given, "config.json")
    expected = {name: getattr(loaded, name, None) for name in shape_of(found)}
    if expected["head_dim"] is None:
        expected["head_dim"] = 256 // 32
    assert shape_of(found) == expected
    assert found.rope_theta == loaded.rope_parameters["rope_theta"]


@pytest.mark.parametrize("architecture", ARCHITECTURES.types)
def test_every_key_of_the_recipe_is_in_config_json(architecture):
    model_config = recipe.load(ARCHITECTURES, SMALL | {"architecture": architecture}, "model")
    config = config_of(model_config, TOKENIZER, "float32")
    names = {field.name for field in dataclasses.fields(ARCHITECTURES.types[architecture])}
    assert names - config.keys() == {"architecture"}
    assert config["model_type"] == architecture


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"architecture": "gpt2"}, f"architecture must be one of {NAMES}, got 'gpt2'"),
        ({"architecture": ["llama"]}, f"architecture must be one of {NAMES}, got ['llama']"),
        ({"sliding_window": 8}, "sliding_window must be left out for architecture llama: it is a key of mistral, m"),
        ({"architecture": "qwen3", "attention_bias": True}, "attention_bias must be left out for architecture qwen3"),
        ({"architecture": "mixtral", "num_experts_per_tok": 9}, "num_experts_per_tok must be at most num_local_exp"),
        ({"architecture": "mistral", "num_local_experts": 4}, "num_local_experts must be left out for architecture"),
        ({"num_attention_heads": 3, "head_dim": 8}, "num_attention_heads must divide hidden_size (16), got 3"),
        ({"head_dim": 7}, "head_dim must be an even number, got 7"),
    ],
)
def test_keys_that_an_architecture_does_not_have_are_refused(keys, sentence):
    with pytest.raises(UserError) as caught:
        recipe.load(ARCHITECTURES, SMALL | keys, "model")
    assert str(caught.value).startswith(f"model.{sentence}")


def test_a_bias_starts_at_zero_and_a_norm_at_one():
    from stages.lib.model.initialize import initialize

    for keys, name, value in (
        ({"attention_bias": True}, "attn.in_proj.qkv_fused.bias", 0),
        ({"architecture": "qwen3"}, "attn.q_norm.weight", 1),
    ):
        model = Transformer(recipe.load(ARCHITECTURES, SMALL | keys, "model"), VOCABULARY)
        initialize(model, seed=1)
        assert (model.state_dict()[f"base_model.layers.0.{name}"] == value).all()
