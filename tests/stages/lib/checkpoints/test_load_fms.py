"""Checkpoints of ibm-fms and fms-fsdp: every format and layout gives the bits that were saved, or one sentence."""

import dataclasses
import pickle
import sys
import zipfile
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch.distributed._shard.sharded_tensor.metadata import TensorProperties  # those of DCP before torch 2.3
from torch.distributed.checkpoint.metadata import BytesStorageMetadata
from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from stages.lib.checkpoints import find_model, model_files
from stages.lib.distributed.process_group import process_group
from stages.lib.errors import UserError
from stages.lib.model import key_table
from stages.lib.model.architectures import LlamaRecipe, MixtralRecipe
from stages.lib.model.transformer import Block
from tests.helpers.export_cases import CASES, recipe_of
from tests.helpers.export_fixtures import MODEL, random_model
from tests.helpers.fms_checkpoints import FORMATS, LAYOUTS, unfused, write_dcp
from tests.helpers.hostile_pickles import Call, ran
from tests.helpers.training import run_on

VOCABULARY = 61
RECIPE = LlamaRecipe(**MODEL)
TIED = dataclasses.replace(RECIPE, tie_word_embeddings=True)


def state_of(recipe=RECIPE):
    return {key: tensor.detach().clone() for key, tensor in random_model(recipe, VOCABULARY).state_dict().items()}


def read(path, recipe=RECIPE):
    found = find_model.find(path, "--initial", recipe, "pretrain.model.")
    assert found.vocab_size == VOCABULARY
    return found.read(list(key_table.build(recipe, VOCABULARY).by_key))


def assert_equal_bits(found, expected):
    assert found.keys() == expected.keys()
    for key, tensor in expected.items():
        assert found[key].dtype == tensor.dtype
        assert found[key].numpy(force=True).tobytes() == tensor.numpy(force=True).tobytes(), key


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", FORMATS)
def test_every_format_and_layout_gives_the_bits_that_were_saved(tmp_path, name, layout):
    path = tmp_path / "checkpoints" / name
    path.parent.mkdir()
    FORMATS[name](path, LAYOUTS[layout](state_of(), RECIPE))
    assert_equal_bits(read(path), state_of())


@pytest.mark.parametrize("name", ["model.pth", "step_7_ckp", "model.safetensors"])
def test_experts_are_apart_in_ibm_fms(tmp_path, name):
    recipe = MixtralRecipe(
        architecture="mixtral", num_hidden_layers=1, hidden_size=64, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=96, num_local_experts=4,
    )  # fmt: skip
    state = state_of(recipe)
    ffn = "base_model.layers.0.ff_sub_layer.cond_ffn."
    apart = {key: tensor.unflatten(0, (4, -1)).clone() for key, tensor in state.items() if key.startswith(ffn)}
    assert {key.removeprefix(ffn): [*tensor.shape] for key, tensor in apart.items()} == {
        **{"w13": [4, 192, 64], "w2": [4, 64, 96]}
    }
    FORMATS[name](tmp_path / name, state | apart)
    assert_equal_bits(read(tmp_path / name, recipe), state)


@pytest.mark.parametrize("name", ["model.pth", "step_7_ckp", "model.safetensors"])
def test_a_tied_head_may_be_the_only_name(tmp_path, name):
    state = state_of(TIED)
    FORMATS[name](tmp_path / name, {key: state[key] for key in state if key != "base_model.embedding.weight"})
    assert_equal_bits(read(tmp_path / name, TIED), state)


@pytest.mark.long
def test_fsdp_on_two_ranks_gives_the_bits_that_were_saved(tmp_path):
    run_on(2, "tests.stages.lib.checkpoints.test_load_fms", tmp_path)
    expected = torch.load(tmp_path / "whole.pth", weights_only=True)
    assert len(list((tmp_path / "step_7_ckp").glob("*.distcp"))) == 2
    assert_equal_bits(read(tmp_path / "step_7_ckp"), expected)


def test_metadata_of_torch_2_2_is_read(tmp_path):
    write_dcp(tmp_path / "step_7_ckp", state_of())
    metadata = pickle.loads((tmp_path / "step_7_ckp/.metadata").read_bytes())
    for entry in metadata.state_dict_metadata.values():
        if not isinstance(entry, BytesStorageMetadata):
            entry.properties = TensorProperties(dtype=entry.properties.dtype)
    (tmp_path / "step_7_ckp/.metadata").write_bytes(pickle.dumps(metadata))
    assert_equal_bits(read(tmp_path / "step_7_ckp"), state_of())


BEYOND_FMS = {"architecture", "attention_bias", "head_dim"}
"""Keys that ibm-fms' Llama does not have."""


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("case", [case for case in CASES if not BEYOND_FMS & CASES[case].keys()])
def test_a_model_of_ibm_fms_gives_its_logits(tmp_path, case, fused):
    llama, recipe = pytest.importorskip("fms.models.llama"), recipe_of(case)
    config = llama.LLaMAConfig(
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
        rope_scaling=vars(recipe.rope_scaling) if recipe.rope_scaling else {},
        tie_heads=recipe.tie_word_embeddings,
        fused_weights=fused,
        pad_id=-1,
    )
    theirs = llama.LLaMA(config).eval()
    theirs.load_state_dict(LAYOUTS["fused" if fused else "unfused"](state_of(recipe), recipe), strict=True)
    torch.save(theirs.state_dict(), tmp_path / "model.pth")
    ours = find_model.load(find_model.find(tmp_path / "model.pth", "--model", recipe), torch.float32, "cpu")
    # longer than the original positions of a scaling
    tokens = torch.randint(0, VOCABULARY, (2, 200), generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        torch.testing.assert_close(ours.logits(tokens), theirs(tokens), rtol=0, atol=1e-4)


def refusal(path, recipe=RECIPE):
    with pytest.raises(UserError) as caught:
        read(path, recipe)
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(str(path), "PATH")


WRONG_CONFIGS = [
    ({"num_hidden_layers": 3}, "pretrain.model.num_hidden_layers is 3, but 2 in PATH"),
    ({"hidden_size": 64}, "pretrain.model.hidden_size is 64, but 32 in PATH"),
    ({"intermediate_size": 40}, "pretrain.model.intermediate_size is 40, but 48 in PATH"),
    (
        {"num_key_value_heads": None},
        "pretrain.model.num_key_value_heads and num_attention_heads must give keys of 16 rows as in PATH, "
        "got 4 and 4, which give 32",
    ),
    (
        {"num_attention_heads": 8},
        "pretrain.model.num_key_value_heads and num_attention_heads must give keys of 16 rows as in PATH, "
        "got 2 and 8, which give 8",
    ),
    (
        {"tie_word_embeddings": True},
        "pretrain.model.tie_word_embeddings must be false for PATH, whose head.weight is not its embedding",
    ),
]


@pytest.mark.parametrize("layout", ["fused", "unfused"])
@pytest.mark.parametrize(("change", "message"), WRONG_CONFIGS)
def test_a_config_that_differs_from_the_tensors_is_named_by_its_key(tmp_path, change, message, layout):
    FORMATS["model.pth"](tmp_path / "model.pth", LAYOUTS[layout](state_of(), RECIPE))
    assert refusal(tmp_path / "model.pth", dataclasses.replace(RECIPE, **change)) == message


def test_a_checkpoint_without_a_config_is_one_sentence(tmp_path):
    FORMATS["model.pth"](tmp_path / "model.pth", state_of())
    with pytest.raises(UserError, match=r"does not hold its config: name it .*, or make a Hugging Face directory with"):
        find_model.find(tmp_path / "model.pth")


NORM = "base_model.layers.1.ln.weight"
CHANGED_STATES = [
    (lambda state: state.pop(NORM), f"PATH lacks {NORM}, which its config requires"),
    (lambda state: state.pop("base_model.embedding.weight"), "PATH lacks base_model.embedding.weight, which a"),
    (lambda state: state.pop("head.weight"), "pretrain.model.tie_word_embeddings must be true for PATH, which has no"),
    (
        lambda state: state.update({"base_model.layers.0.attn.dense.bias": torch.ones(32)}),
        "PATH must hold only the tensors of its config's model, found base_model.layers.0.attn.dense.bias",
    ),
    (
        lambda state: state.update({"module." + NORM: torch.ones(32)}),
        f"PATH must hold {NORM} once, found it as {NORM} and as module.{NORM}",
    ),
    (
        lambda state: state.update({NORM: torch.ones(31)}),
        f"PATH: {NORM} must have the shape [32] by its config, found [31]",
    ),
    (
        lambda state: state.update({NORM: torch.ones(32, dtype=torch.int64)}),
        f"PATH: {NORM} must be one of float64, float32, bfloat16, float16, found ",
    ),
    (
        lambda state: state[NORM].__setitem__(3, float("nan")),
        f"PATH: {NORM} must have finite values, found NaN or infinity",
    ),
    (
        lambda state: state.update({"base_model.embedding.weight": torch.ones(3)}),
        "PATH: base_model.embedding.weight must be a matrix, found the shape [3]",
    ),
]


@pytest.mark.parametrize("name", ["model.pth", "model.safetensors", "step_7_ckp"])
@pytest.mark.parametrize(("change", "message"), CHANGED_STATES)
def test_tensors_that_are_not_those_of_the_model_are_named(tmp_path, name, change, message):
    state = state_of()
    change(state)
    FORMATS[name](tmp_path / name, state)
    assert refusal(tmp_path / name).startswith(message)


def test_a_part_that_is_missing_is_named(tmp_path):
    key, state = "base_model.layers.1.attn.in_proj.key.weight", unfused(state_of(), RECIPE)
    del state[key]
    FORMATS["model.pth"](tmp_path / "model.pth", state)
    assert refusal(tmp_path / "model.pth") == f"PATH lacks {key}, which its config requires"


def test_a_tensor_in_two_files_is_named(tmp_path):
    FORMATS["shards"](tmp_path / "shards", state_of())
    one, two = (tmp_path / "shards" / f"part-{number}.safetensors" for number in range(2))
    save_file(load_file(one) | {"head.weight": torch.ones(VOCABULARY, 32)}, one)
    save_file(load_file(two) | {"head.weight": torch.ones(VOCABULARY, 32)}, two)
    message = refusal(tmp_path / "shards")
    assert message == "PATH must hold head.weight once, found it in part-0.safetensors and part-1.safetensors"


def test_no_code_of_a_file_of_torch_save_runs(tmp_path):
    path = tmp_path / "step_7_ckp.pth"
    torch.save({"model_state": state_of(), "step": Call()}, path)
    message = refusal(path)
    assert message.startswith("PATH could not be read as tensors: its pickle names ")
    assert message.endswith("run_code, which is neither a tensor nor a plain value")
    path.write_bytes(pickle.dumps({"model_state": Call()}))
    assert refusal(path).startswith("PATH is not a whole file of torch.save (a zip archive): ")
    assert ran == []


def test_no_code_of_a_dcp_checkpoint_runs(tmp_path):
    path = tmp_path / "step_7_ckp"
    write_dcp(path, state_of() | {"extra_state": Call()})
    assert b"run_code" in b"".join(file.read_bytes() for file in path.glob("*.distcp"))
    assert_equal_bits(read(path), state_of())  # an entry of bytes is left out
    metadata = pickle.loads((path / ".metadata").read_bytes())
    metadata.planner_data = Call()
    (path / ".metadata").write_bytes(pickle.dumps(metadata))
    assert "is not the .metadata of a checkpoint: it may not name " in refusal(path)
    assert ran == []


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A file of torch.save, and its content. test_dcp_metadata.py has that of the metadata of DCP."""
    path = tmp_path_factory.mktemp("written") / "step_7_ckp.pth"
    FORMATS["step_7_ckp.pth"](path, state_of())
    return path, path.read_bytes()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_changed_bytes_are_read_or_refused(written, data):
    path, before = written
    content, start = bytearray(before), max(before.find(b"model_state") - 100, 0)  # the pickle, not the numbers
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(start, min(start + 4000, len(before) - 1)))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    try:
        read(path)
    except UserError as error:
        assert len(str(error).splitlines()) == 1


@pytest.mark.parametrize("place", ["../outside.distcp", "/etc/passwd", ".metadata", "missing.distcp"])
def test_no_file_outside_of_a_dcp_checkpoint_is_read(tmp_path, place):
    path = tmp_path / "step_7_ckp"
    write_dcp(path, state_of())
    (tmp_path / "outside.distcp").write_bytes((path / "__0_0.distcp").read_bytes())
    metadata = pickle.loads((path / ".metadata").read_bytes())
    for info in metadata.storage_data.values():
        info.relative_path = place
    (path / ".metadata").write_bytes(pickle.dumps(metadata))
    assert refusal(path).endswith(f"a tensor must lie in a file of its directory, found {place!r}")


@pytest.mark.parametrize("name", ["step_7_ckp.pth", "model.safetensors", "step_7_ckp"])
@pytest.mark.parametrize("kept", [0, 0.1, 0.99])
def test_a_truncated_file_is_one_sentence(tmp_path, name, kept):
    path = tmp_path / name
    FORMATS[name](path, state_of())
    file = next(path.glob("*.distcp")) if path.is_dir() else path
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * kept)])
    refusal(path)


def test_a_damaged_archive_is_one_sentence(tmp_path):
    path = tmp_path / "model.pth"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model/data.pkl", b"nonsense")
    refusal(path)
    torch.save([1, 2], path)
    assert refusal(path) == "PATH must hold a state dict, found a list"
    torch.save({"a": 1}, path)
    assert refusal(path) == "PATH must hold a dense tensor as a, found a int"


def test_a_torn_checkpoint_of_ours_is_not_taken_for_one(tmp_path):
    path = tmp_path / "checkpoints/00000007"
    path.parent.mkdir()
    write_dcp(path, state_of())
    assert "is not a complete checkpoint: it has no commit.json" in refusal(path)


def test_the_digest_is_that_of_the_files_with_tensors(tmp_path):
    one, other = tmp_path / "step_7_ckp", tmp_path / "other"
    for path in (one, other):
        write_dcp(path, state_of())
    (other / ".metadata").write_bytes((one / ".metadata").read_bytes())  # DCP writes a random id
    torch.save({"step": 8}, other / "metadata.pth")
    assert model_files.digest_of(one, "--initial") == model_files.digest_of(other, "--initial")
    (config := tmp_path / "config.json").write_text("{}")
    assert model_files.digest_of(one, "--initial", config=config) != model_files.digest_of(one, "--initial")
    (data,) = other.glob("*.distcp")
    data.write_bytes(data.read_bytes() + b"0")
    assert model_files.digest_of(one, "--initial") != model_files.digest_of(other, "--initial")


def save_under_fsdp(directory):
    """Save a model under FSDP on these ranks as fms-fsdp does, and its whole state dict."""
    model = random_model(RECIPE, VOCABULARY)
    if dist.get_rank() == 0:
        torch.save(model.state_dict(), directory / "whole.pth")
    policy = ModuleWrapPolicy({Block})
    sharded = FullyShardedDataParallel(model, auto_wrap_policy=policy, device_id=torch.device("cpu"))
    optimizer = torch.optim.AdamW(sharded.parameters())
    with FullyShardedDataParallel.state_dict_type(sharded, StateDictType.SHARDED_STATE_DICT):
        state = {
            "model_state": sharded.state_dict(),
            "optimizer_state": FullyShardedDataParallel.sharded_optim_state_dict(sharded, optimizer),
        }
        writer = dcp.FileSystemWriter(directory / "step_7_ckp", single_file_per_rank=True)
        dcp.save(state, storage_writer=writer)


if __name__ == "__main__":
    with process_group():
        save_under_fsdp(Path(sys.argv[1]))
