"""Hugging Face directories as FMS tensors: those of our export, and those that transformers writes."""

import json
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from stages.lib import stage
from stages.lib.checkpoints import model_files
from stages.lib.distributed.process_group import process_group
from stages.lib.errors import UserError
from stages.lib.huggingface import load_hf
from stages.lib.model import key_table
from stages.lib.model.architectures import LlamaRecipe
from stages.lib.model.transformer import Transformer
from tests.helpers.export_cases import SMALL, write_export
from tests.helpers.export_fixtures import random_model
from tests.helpers.training import run_on

VOCABULARY = 301
MESHES = ((2,), (1, 2), (2, 1))  # on two axes: replicate, shard


def exported(directory, recipe, **options):
    """Write the export of a random model to a directory; returns the model."""
    model = random_model(recipe, VOCABULARY)
    directory.mkdir(exist_ok=True)
    write_export(directory, recipe, model, vocab_size=VOCABULARY, **options)
    return model


@pytest.fixture
def directory(tmp_path):
    """The export of a small model, for tests that change it."""
    exported(tmp_path, LlamaRecipe(**SMALL, num_key_value_heads=2))
    return tmp_path


@pytest.mark.parametrize("options", [{"num_key_value_heads": 2}, {"tie_word_embeddings": True}, {"llama3": True}])
def test_a_sharded_model_of_transformers_gives_the_same_logits(tmp_path, options):
    from transformers import LlamaConfig, LlamaForCausalLM

    rope = {"rope_theta": 5e5, "rope_type": "default"}
    if options.pop("llama3", False):
        rope |= {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        rope["original_max_position_embeddings"] = 64
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=256,
        initializer_range=0.1,
        rope_parameters=rope,
        **options,
    )
    theirs = LlamaForCausalLM(config).eval()
    theirs.save_pretrained(tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    found = load_hf.open_directory(tmp_path)
    ours = Transformer(found.model_config, found.vocab_size)
    load_hf.load_into(ours.named_parameters(), found.read)
    tokens = torch.randint(0, VOCABULARY, (2, 200), generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        expected = theirs(tokens).logits
        assert expected.std() > 0.1
        torch.testing.assert_close(ours.logits(tokens), expected, rtol=0, atol=1e-5)


def test_one_layer_is_read_without_the_others(directory):
    found = load_hf.open_directory(directory)
    found.file_of.update({name: "gone.safetensors" for name in found.file_of if ".layers.1." not in name})
    read = found.read([weight.key for weight in key_table.build(found.model_config, VOCABULARY).layers[1]])
    assert [list(tensor.shape) for tensor in read.values()] == [[64], [128, 64], [64, 64], [64], [192, 64], [64, 96]]


def test_weights_are_given_in_the_dtype_of_the_file_and_loaded_in_that_of_the_model(tmp_path):
    recipe = LlamaRecipe(**SMALL, tie_word_embeddings=True)
    model = exported(tmp_path, recipe, dtype="bfloat16")
    found = load_hf.open_directory(tmp_path)
    assert found.read(["head.weight"])["head.weight"].dtype == torch.bfloat16
    ours = Transformer(recipe, VOCABULARY)
    load_hf.load_into(ours.named_parameters(), found.read)
    for key, tensor in ours.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[key].bfloat16().float())


def test_the_digest_is_that_of_config_and_weights(tmp_path):
    for name in ("a", "b", "c"):
        exported(tmp_path / name, LlamaRecipe(**SMALL), shard_mb=1)
    (tmp_path / "b" / "README.md").write_text("not part of the model")
    weights = load_file(tmp_path / "c" / "model.safetensors")
    weights["model.norm.weight"][0] += 1
    save_file(weights, tmp_path / "c" / "model.safetensors")
    one, same, other = (model_files.digest_of(tmp_path / name, "--initial") for name in ("a", "b", "c"))
    assert one == same != other
    change_config(tmp_path / "a", rms_norm_eps=1e-6)
    assert model_files.digest_of(tmp_path / "a", "--initial") != one


def change_config(directory, **keys):
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | keys))


def change_weights(directory, change):
    weights = load_file(directory / "model.safetensors")
    change(weights)
    save_file(weights, directory / "model.safetensors")


def refusal(directory):
    with pytest.raises(UserError) as caught:
        load_hf.open_directory(directory)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def as_bytes(weights):
    weights["model.norm.weight"] = weights["model.norm.weight"].to(torch.int8)


@pytest.mark.parametrize(
    ("config", "change", "sentence"),
    [
        (
            {},
            lambda weights: weights.pop("model.norm.weight"),
            "lacks model.norm.weight, which its config.json requires",
        ),
        ({"num_hidden_layers": 1}, None, "found model.layers.1.input_layernorm.weight and 8 other tensors"),
        ({"vocab_size": VOCABULARY + 1}, None, "must have the shape [302, 64] by config.json, found [301, 64]"),
        ({}, as_bytes, "model.norm.weight must be one of F64, F32, BF16, F16, found I8"),
    ],
)
def test_tensors_that_are_not_those_of_the_config_are_named(directory, config, change, sentence):
    change_config(directory, **config)
    change_weights(directory, change or (lambda _: None))
    assert sentence in refusal(directory)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_named(directory, value):
    name = "model.layers.1.mlp.down_proj.weight"
    change_weights(directory, lambda weights: weights[name][3].fill_(value))
    found = load_hf.open_directory(directory)
    with pytest.raises(UserError, match=f"{name} must have finite values, found NaN or infinity"):
        load_hf.load_into(Transformer(found.model_config, found.vocab_size).named_parameters(), found.read)


def test_a_tensor_in_two_files_is_named(tmp_path):
    exported(tmp_path, LlamaRecipe(**SMALL, num_key_value_heads=2), shard_mb=1)
    tensors = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    index = {name: f"{number % 2}.safetensors" for number, name in enumerate(tensors)}
    for number in "01":
        held = {name: tensor for name, tensor in tensors.items() if index[name][0] == number}
        save_file(held | {"model.norm.weight": tensors["model.norm.weight"]}, tmp_path / f"{number}.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    with pytest.raises(UserError, match="model.norm.weight once, found it in 0.safetensors and 1.safetensors"):
        load_hf.open_directory(tmp_path)


def test_buffers_of_old_versions_are_ignored(directory):
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    change_weights(directory, lambda weights: weights.update({name: torch.ones(8)}))
    assert name not in load_hf.open_directory(directory).file_of


def test_a_tied_head_may_be_stored_but_only_as_the_embedding(tmp_path):
    exported(tmp_path, LlamaRecipe(**SMALL, tie_word_embeddings=True))
    embedding = load_file(tmp_path / "model.safetensors")["model.embed_tokens.weight"]
    change_weights(tmp_path, lambda weights: weights.update({"lm_head.weight": embedding.clone()}))
    assert "lm_head.weight" not in load_hf.open_directory(tmp_path).file_of
    embedding[-1, -1] += 1
    change_weights(tmp_path, lambda weights: weights.update({"lm_head.weight": embedding}))
    assert "tie_word_embeddings must be false" in refusal(tmp_path)


def test_files_that_are_missing_or_not_valid_are_named(directory):
    weights = directory / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1])
    assert f"{weights} must be a safetensors file" in refusal(directory)
    weights.unlink()
    assert "must hold model.safetensors or model.safetensors.index.json" in refusal(directory)
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"lm_head.weight": "model-00001-of-00001.safetensors"}}))
    assert "model-00001-of-00001.safetensors must be a safetensors file" in refusal(directory)
    index.write_text(json.dumps({"weight_map": {"lm_head.weight": "../model.safetensors"}}))
    assert "weight_map must name files beside it, got ../model.safetensors" in refusal(directory)
    index.write_text("{}")
    assert "weight_map must map tensors to files" in refusal(directory)
    (directory / "config.json").unlink()
    assert "config.json cannot be read" in refusal(directory)


def test_a_tensor_that_does_not_fit_the_model_is_refused():
    model = Transformer(LlamaRecipe(**SMALL), VOCABULARY)
    with pytest.raises(
        UserError, match=r"base_model.embedding.weight must have the shape \[301, 64\], found \[2, 64\]"
    ):
        load_hf.load_into(model.named_parameters(), lambda keys: dict.fromkeys(keys, torch.zeros(2, 64)))


def test_ranks_of_every_mesh_load_their_own_rows(tmp_path):
    model = exported(tmp_path / "export", LlamaRecipe(**SMALL, num_key_value_heads=2, tie_word_embeddings=True))
    torch.save(model.state_dict(), tmp_path / "expected.pt")
    run_on(2, "tests.stages.lib.huggingface.test_load_hf", tmp_path)
    rows = {sizes: [(tmp_path / f"{rank}-{sizes}.rows").read_text() for rank in (0, 1)] for sizes in MESHES}
    assert rows == {(2,): ["151", "150"], (1, 2): ["151", "150"], (2, 1): ["301", "301"]}


def load_on_meshes(home):
    """Load the export in `home`, on each mesh of these ranks, and compare it."""
    expected = torch.load(home / "expected.pt")
    found = load_hf.open_directory(home / "export")
    for sizes in MESHES:
        with torch.device("meta"):
            model = Transformer(found.model_config, found.vocab_size)
        mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("replicate", "shard")[-len(sizes) :])
        for module in (*model.base_model.layers, model):
            fully_shard(module, mesh=mesh)
        model.to_empty(device="cpu")
        load_hf.load_into(model.named_parameters(), found.read)
        for name, tensor in model.state_dict().items():
            assert torch.equal(tensor.full_tensor(), expected[name]), f"{name} differs on the mesh {sizes}"
        rows = len(model.base_model.embedding.weight.to_local())
        (home / f"{dist.get_rank()}-{sizes}.rows").write_text(str(rows))


if __name__ == "__main__":
    with process_group():
        load_on_meshes(Path(sys.argv[1]))
    stage.leave(0)
