"""The export against transformers and ibm-fms, for several model configs."""

import json

import pytest
import torch

from stages.lib.errors import UserError
from stages.lib.huggingface import config_json, export, parity
from stages.lib.model.llama import Llama
from stages.lib.model.llama_config import ModelRecipe, RopeScaling
from tests.helpers.export_fixtures import random_model, write_settings

VOCABULARY = 300
TOKENIZER = {"vocab_size": VOCABULARY, "bos": 1, "eos": 2, "bos_added": True}
SMALL = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 256,
}
CONFIGS = {
    "mha": {},
    "gqa": {"num_key_value_heads": 2},
    "mqa": {"num_key_value_heads": 1},
    "tied": {"tie_word_embeddings": True},
    "theta": {"rope_theta": 5e5, "num_key_value_heads": 2},
    "llama3": {"rope_theta": 5e5, "rope_scaling": RopeScaling(factor=8.0, original_max_position_embeddings=64)},
}


def exported(directory, recipe, model, dtype="float32", shard_mb=100, vocab_size=VOCABULARY):
    """Write the export of a model that is held in memory."""
    state = model.state_dict()
    export.write_weights(directory, recipe, vocab_size, reader(state), dtype, shard_mb)
    write_settings(directory, config_json.config_of(recipe, {**TOKENIZER, "vocab_size": vocab_size}, dtype))


def reader(state):
    """A `read` over a state dict."""
    return lambda keys: {key: state[key] for key in keys}


def batch():
    """Two batches of random tokens, one of them longer than the scaling's original positions."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(0, VOCABULARY, (2, length), generator=generator) for length in (7, 200)]


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_equal_those_of_transformers(tmp_path, name):
    recipe = ModelRecipe(**SMALL, **CONFIGS[name])
    model = random_model(recipe, VOCABULARY)
    exported(tmp_path, recipe, model)
    figures = parity.compare_logits(model, parity.load_exported(tmp_path), batch(), tolerance=1e-4)
    assert 0.5 < figures["std"] < 2
    assert figures["max_difference"] <= 1e-4
    assert figures["argmax_agreement"] > 0.99


@pytest.mark.parametrize("name", ["mha", "theta", "llama3"])
def test_angles_have_the_bits_of_transformers(name):
    from transformers.models.llama.modeling_llama import LlamaConfig, LlamaRotaryEmbedding

    recipe = ModelRecipe(**SMALL | {"max_position_embeddings": 8192}, **CONFIGS[name])
    theirs = LlamaRotaryEmbedding(LlamaConfig(**config_json.config_of(recipe, TOKENIZER, "float32")))
    positions = torch.arange(recipe.max_position_embeddings)
    expected = [table[0, :, : recipe.head_dim // 2] for table in theirs(torch.zeros(1), positions[None])]
    found = Llama(recipe, VOCABULARY).base_model.rotation(positions, torch.device("cpu"))
    assert all(torch.equal(a.squeeze(1), b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("std", [0.05, 0.1, 0.2])
def test_a_model_of_sharp_attention_passes(tmp_path, std):
    """With angles in float64, which transformers has in float32, 0.1 and 0.2 were refused."""
    sizes = {"hidden_size": 256, "num_hidden_layers": 4, "intermediate_size": 512, "max_position_embeddings": 512}
    recipe = ModelRecipe(**SMALL | sizes, num_key_value_heads=2)
    model = Llama(recipe, VOCABULARY)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            weight.fill_(1) if weight.dim() == 1 else weight.normal_(0, std, generator=generator)
    exported(tmp_path, recipe, model)
    tokens = torch.randint(0, VOCABULARY, (1, 512), generator=generator)
    parity.compare_logits(model, parity.load_exported(tmp_path), [tokens], tolerance=1e-4)


@pytest.mark.parametrize("name", ["gqa", "tied"])
def test_logits_equal_those_of_ibm_fms(name):
    fms = pytest.importorskip("fms.models.llama")
    recipe = ModelRecipe(**SMALL, **CONFIGS[name])
    ours = random_model(recipe, VOCABULARY)
    theirs = fms.LLaMA(
        fms.LLaMAConfig(
            src_vocab_size=VOCABULARY,
            emb_dim=recipe.hidden_size,
            norm_eps=recipe.rms_norm_eps,
            nheads=recipe.num_attention_heads,
            kvheads=recipe.kv_heads,
            nlayers=recipe.num_hidden_layers,
            hidden_grow_factor=recipe.intermediate_size / recipe.hidden_size,
            multiple_of=1,
            max_expected_seq_len=recipe.max_position_embeddings,
            rope_theta=recipe.rope_theta,
            tie_heads=recipe.tie_word_embeddings,
            fused_weights=True,
            pad_id=-1,
        )
    )
    theirs.load_state_dict(ours.state_dict(), strict=True)
    tokens = batch()[1]
    with torch.inference_mode():
        assert (ours.logits(tokens) - theirs.eval()(tokens)).abs().max() <= 1e-4


def test_shards_hold_the_weights_of_one_file(tmp_path):
    recipe = ModelRecipe(num_hidden_layers=2, hidden_size=256, num_attention_heads=4, intermediate_size=512)
    model = random_model(recipe, VOCABULARY)
    (tmp_path / "sharded").mkdir()
    exported(tmp_path / "sharded", recipe, model, shard_mb=1)
    shards = sorted(path.name for path in tmp_path.glob("sharded/*.safetensors"))
    index = json.loads((tmp_path / "sharded" / export.INDEX).read_text())
    assert len(shards) > 3
    assert shards == sorted(set(index["weight_map"].values()))
    figures = parity.compare_logits(model, parity.load_exported(tmp_path / "sharded"), batch(), tolerance=1e-4)
    assert figures["argmax_agreement"] == 1


def test_padding_of_the_vocabulary_is_cut(tmp_path):
    recipe = ModelRecipe(**SMALL)
    model = random_model(recipe, VOCABULARY + 20)
    exported(tmp_path, recipe, model)
    theirs = parity.load_exported(tmp_path)
    assert theirs.lm_head.weight.shape[0] == VOCABULARY
    with torch.inference_mode():
        ours = model.logits(batch()[0])[..., :VOCABULARY]
        assert (ours - theirs(batch()[0]).logits).abs().max() <= 1e-4


def test_a_vocabulary_larger_than_the_embedding_is_refused(tmp_path):
    recipe = ModelRecipe(**SMALL)
    model = random_model(recipe, VOCABULARY - 1)
    with pytest.raises(UserError, match="row for each of 300 tokens"):
        exported(tmp_path, recipe, model)


def test_rounded_weights_are_compared_with_rounded_weights(tmp_path):
    recipe = ModelRecipe(**SMALL, num_key_value_heads=2)
    model = random_model(recipe, VOCABULARY)
    exported(tmp_path, recipe, model, dtype="bfloat16")
    theirs = parity.load_exported(tmp_path)
    rounded = Llama(recipe, VOCABULARY)
    rounded.load_state_dict(export.rounded_state(recipe, VOCABULARY, reader(model.state_dict()), "bfloat16"))
    assert parity.compare_logits(rounded, theirs, batch(), 1e-4)["max_difference"] <= 1e-4
    with pytest.raises(parity.ParityError, match="the embedding"):
        parity.compare_logits(model, theirs, batch(), 1e-4)
