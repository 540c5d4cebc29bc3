"""tools.import_checkpoint: any format to a Hugging Face directory and back in the same bits, whole or not at all."""

import json

import pytest
import torch
from safetensors.torch import load_file

from stages.lib.checkpoints import find_model
from stages.lib.huggingface import config_json, export
from stages.lib.model import key_table
from stages.lib.model.architectures import LlamaRecipe
from stages.lib.model.model_recipe import RopeScaling
from tests.helpers.export_fixtures import random_model, write_settings
from tests.helpers.faults import files_of_at_most
from tests.helpers.fms_checkpoints import FORMATS, LAYOUTS
from tools import import_checkpoint

VOCABULARY = 61
KEYS = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2}
KEYS |= {"intermediate_size": 48}
CONFIGS = {
    "gqa": {},
    "mha": {"num_key_value_heads": None},
    "tied": {"tie_word_embeddings": True},
    "llama3": {"rope_theta": 5e5, "rope_scaling": RopeScaling(factor=8.0, original_max_position_embeddings=64)},
}


def hugging_face(directory, recipe, dtype="float32"):
    """Write a random model's Hugging Face directory; return it."""
    state = random_model(recipe, VOCABULARY).state_dict()
    directory.mkdir()
    export.write_weights(directory, recipe, VOCABULARY, lambda keys: {key: state[key] for key in keys}, dtype, 100)
    ids = {"vocab_size": VOCABULARY, "bos": 1, "eos": 2, "bos_added": True}
    write_settings(directory, config_json.config_of(recipe, ids, dtype))
    return directory


def state_of(directory, recipe):
    return find_model.find(directory).read(list(key_table.build(recipe, VOCABULARY).by_key))


def run(*arguments):
    return import_checkpoint.main([str(argument) for argument in arguments])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", CONFIGS)
def test_hugging_face_to_fms_and_back_is_the_same_files(tmp_path, name, layout):
    recipe = LlamaRecipe(**KEYS | CONFIGS[name])
    before = hugging_face(tmp_path / "before", recipe)
    FORMATS["step_7_ckp.pth"](tmp_path / "model.pth", LAYOUTS[layout](state_of(before, recipe), recipe))
    assert run(tmp_path / "model.pth", tmp_path / "after", "--model-config", before / "config.json") == 0
    for file in ("model.safetensors", "config.json", "generation_config.json"):
        assert (tmp_path / "after" / file).read_bytes() == (before / file).read_bytes(), file


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_imported_in_its_dtype(tmp_path, name):
    recipe = LlamaRecipe(**KEYS)
    before = hugging_face(tmp_path / "before", recipe, "bfloat16")
    FORMATS[name](tmp_path / name, state_of(before, recipe))
    assert run(tmp_path / name, tmp_path / "after", "--model-config", json.dumps(KEYS)) == 0
    expected, found = (load_file(directory / "model.safetensors") for directory in (before, tmp_path / "after"))
    assert found.keys() == expected.keys()
    assert all(found[key].dtype == torch.bfloat16 and torch.equal(found[key], expected[key]) for key in expected)
    assert json.loads((tmp_path / "after/config.json").read_text())["dtype"] == "bfloat16"
    assert {path.name for path in tmp_path.iterdir()} == {"before", name, "after"}


def test_a_model_with_float32_norms_keeps_them_and_states_the_wider_dtype(tmp_path):
    recipe = LlamaRecipe(**KEYS)
    state = state_of(hugging_face(tmp_path / "before", recipe, "bfloat16"), recipe)
    state["base_model.dec_norm.weight"] = torch.full((32,), 1 + 2.0**-20)
    FORMATS["model.safetensors"](tmp_path / "model.safetensors", state)
    assert run(tmp_path / "model.safetensors", tmp_path / "after", "--model-config", json.dumps(KEYS)) == 0
    assert json.loads((tmp_path / "after/config.json").read_text())["dtype"] == "float32"
    assert load_file(tmp_path / "after/model.safetensors")["model.norm.weight"][0] == 1 + 2.0**-20


@pytest.mark.long
def test_transformers_gives_the_logits_of_the_model(tmp_path):
    from transformers import LlamaForCausalLM

    recipe = LlamaRecipe(**KEYS | CONFIGS["llama3"])
    model = random_model(recipe, VOCABULARY).eval()
    FORMATS["step_7_ckp"](tmp_path / "step_7_ckp", model.state_dict())
    before = hugging_face(tmp_path / "before", recipe)
    assert run(tmp_path / "step_7_ckp", tmp_path / "after", "--model-config", before) == 0
    theirs = LlamaForCausalLM.from_pretrained(tmp_path / "after", dtype="auto").eval()
    tokens = torch.randint(0, VOCABULARY, (2, 40), generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        torch.testing.assert_close(model.logits(tokens), theirs(tokens).logits, rtol=0, atol=1e-5)


def test_a_hugging_face_directory_is_written_again_in_another_dtype_with_its_tokenizer(tmp_path):
    recipe = LlamaRecipe(**KEYS)
    before = hugging_face(tmp_path / "before", recipe)
    (before / "tokenizer.json").write_text("{}")
    (tmp_path / "after").mkdir()  # may exist if it is empty
    assert run(before, tmp_path / "after", "--dtype", "bfloat16") == 0
    expected, found = (load_file(directory / "model.safetensors") for directory in (before, tmp_path / "after"))
    assert all(torch.equal(found[key], expected[key].bfloat16()) for key in expected)
    config = json.loads((tmp_path / "after/config.json").read_text())
    assert config == json.loads((before / "config.json").read_text()) | {"dtype": "bfloat16"}
    assert (tmp_path / "after/tokenizer.json").read_text() == "{}"


def test_mistakes_are_one_sentence_and_leave_nothing(tmp_path, capsys):
    recipe = LlamaRecipe(**KEYS)
    before = hugging_face(tmp_path / "before", recipe)
    state, model = state_of(before, recipe), tmp_path / "model.pth"
    FORMATS["model.pth"](model, state)
    state["base_model.layers.1.ln.weight"][0] = float("inf")
    FORMATS["model.pth"](tmp_path / "infinite.pth", state)
    (other := tmp_path / "config.json").write_text(
        json.dumps(json.loads((before / "config.json").read_text()) | {"vocab_size": 60})
    )
    after, config = tmp_path / "after", ("--model-config", json.dumps(KEYS))
    inline = [("--model-config", json.dumps(KEYS | change)) for change in ({"heads": 8}, {"num_hidden_layers": 1})]
    cases = [
        ((model, after), f"--model-config is missing: {model} is a checkpoint of ibm-fms or fms-fsdp, which"),
        ((model, before, *config), f"OUTPUT {before} exists: it must be a new or an empty directory"),
        ((before, after, *config), "--model-config must be omitted for the Hugging Face model"),
        ((model, after, *inline[0]), "unknown key --model-config.heads"),
        ((model, after, *inline[1]), f"--model-config num_hidden_layers is 1, but 2 in {model}"),
        ((model, after, "--model-config", "{"), "--model-config must be JSON or the path of a config.json: "),
        ((model, after, "--model-config", other), f"{other}: vocab_size is 60, but 61 in {model}"),
        ((model, after, "--model-config", tmp_path / "none"), "none cannot be read: No such file"),
        ((tmp_path / "infinite.pth", after, *config), "base_model.layers.1.ln.weight must have finite values"),
        ((tmp_path / "none", after, *config), "none must be a milestone's manifest, a checkpoint, a run directory"),
        ((model, after, *config, "--tokenizer", before), f"--tokenizer {before} must be a directory with tokenizer.js"),
        ((model, after, *config, "--shard-mb", "0"), "--shard-mb must be at least 1, got 0"),
    ]
    names = {path.name for path in tmp_path.iterdir()}
    capsys.readouterr()
    for arguments, message in cases:
        assert run(*arguments) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("import_checkpoint: ") and message in line
    with files_of_at_most(30_000):  # noticed before anything is written
        assert run(before, after) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "the exported model needs files of" in line
    assert {path.name for path in tmp_path.iterdir()} == names
