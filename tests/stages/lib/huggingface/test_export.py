"""The export against transformers and ibm-fms, for several model configs."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from stages.lib.errors import UserError
from stages.lib.huggingface import config_json, export, weight_files
from stages.lib.huggingface.export import RoundingWriter
from stages.lib.model.architectures import LlamaRecipe
from stages.lib.model.transformer import Transformer
from stages.lib.parity import parity
from tests.helpers.export_cases import CASES, SMALL, TOKENIZER, VOCABULARY, reader, recipe_of, write_export
from tests.helpers.export_fixtures import random_model


def batch():
    """Two batches of random tokens, one of them longer than the scaling's original positions."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(0, VOCABULARY, (2, length), generator=generator) for length in (7, 200)]


@pytest.mark.parametrize("name", ["mha", "theta", "llama3"])
def test_angles_have_the_bits_of_transformers(name):
    from transformers.models.llama.modeling_llama import LlamaConfig, LlamaRotaryEmbedding

    recipe = LlamaRecipe(**SMALL | {"max_position_embeddings": 8192}, **CASES[name])
    theirs = LlamaRotaryEmbedding(LlamaConfig(**config_json.config_of(recipe, TOKENIZER, "float32")))
    positions = torch.arange(recipe.max_position_embeddings)
    expected = [table[0, :, : recipe.head_size // 2] for table in theirs(torch.zeros(1), positions[None])]
    found = Transformer(recipe, VOCABULARY).base_model.rotation(positions, torch.device("cpu"))
    assert all(torch.equal(a.squeeze(1), b) for a, b in zip(found, expected, strict=True))


def test_a_vocabulary_larger_than_the_embedding_is_refused(tmp_path):
    recipe = LlamaRecipe(**SMALL)
    model = random_model(recipe, VOCABULARY - 1)
    with pytest.raises(UserError, match="row for each of 300 tokens"):
        write_export(tmp_path, recipe, model)


def test_shards_have_the_bytes_of_safetensors_and_rounded_weights_are_compared_with_rounded_ones(tmp_path):
    recipe = LlamaRecipe(
        num_hidden_layers=11, hidden_size=128, num_attention_heads=4, num_key_value_heads=2, intermediate_size=320
    )
    model = random_model(recipe, VOCABULARY)
    write_export(tmp_path, recipe, model, dtype="bfloat16", shard_mb=1)
    paths = sorted(tmp_path.glob("*.safetensors"))
    index = json.loads((tmp_path / weight_files.INDEX).read_text())
    assert len(paths) > 3
    assert [path.name for path in paths] == sorted(set(index["weight_map"].values()))
    for path in paths:
        save_file(load_file(path), tmp_path / "again", metadata={"format": "pt"})
        assert path.read_bytes() == (tmp_path / "again").read_bytes()
    theirs = parity.load_exported(tmp_path)
    rounded = Transformer(recipe, VOCABULARY)
    rounded.load_state_dict(export.rounded_state(recipe, VOCABULARY, reader(model.state_dict()), "bfloat16"))
    figures = parity.compare_logits(rounded, theirs, batch(), 1e-4)
    assert figures["max_difference"] <= 1e-4 and figures["argmax_agreement"] == 1
    with pytest.raises(parity.ParityError, match="the whole model"):
        parity.compare_logits(model, theirs, batch(), 1e-4)


def test_a_full_disk_is_one_sentence(tmp_path):
    recipe = recipe_of("gqa")
    (tmp_path / "model.safetensors").symlink_to("/dev/full")
    with pytest.raises(UserError, match=r"model\.safetensors cannot be written: "):
        write_export(tmp_path, recipe, random_model(recipe, VOCABULARY))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_file_holds_the_rounded_tensors(tmp_path, monkeypatch, dtype):
    monkeypatch.setattr(export, "PART_BYTES", 64)
    threads = torch.get_num_threads()
    tensors = [torch.randn(7, 13), torch.randn(5), torch.randn(0), torch.randn(6, 4).T]
    expected, position = b"head", 4
    with open(tmp_path / "file", "wb") as file, RoundingWriter(file) as rounding:
        file.write(b"head")
        for tensor in tensors:
            rounding.write(position, tensor, dtype)
            position += tensor.numel() * dtype.itemsize
            expected += tensor.to(dtype).contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    assert (tmp_path / "file").read_bytes() == expected
    assert torch.get_num_threads() == threads


def test_failed_write_is_raised_and_an_error_of_the_caller_not_hidden(tmp_path, monkeypatch):
    with pytest.raises(KeyError), open(tmp_path / "file", "wb") as file, RoundingWriter(file) as rounding:
        rounding.write(0, torch.zeros(100), torch.float32)
        raise KeyError
    monkeypatch.setattr(export, "PART_BYTES", 64)
    with pytest.raises(OSError, match="No space left"), open("/dev/full", "wb") as file:  # noqa: SIM117
        with RoundingWriter(file) as rounding:
            rounding.write(0, torch.zeros(100), torch.float32)
