"""The parity check block by block: what it finds, how it names it, and how much it holds in memory."""

import dataclasses
import json
import weakref

import pytest
import torch
from safetensors.torch import load_file, save_file

from stages.lib.huggingface import export
from stages.lib.model import key_table
from stages.lib.model.architectures import LlamaRecipe
from stages.lib.model.transformer import Transformer
from stages.lib.parity import model_parity, parity, tensor_parity
from stages.lib.parity.parity import ParityError
from tests.helpers.export_cases import CASES, SMALL, VOCABULARY, exported_case, recipe_of, write_export
from tests.helpers.export_fixtures import random_model

LENGTH = 200
TENSORS = sorted(key_table.build(recipe_of("gqa"), VOCABULARY).shapes())


def rows(length=LENGTH, count=2, seed=1):
    """Random tokens."""
    return torch.randint(0, VOCABULARY, (count, length), generator=torch.Generator().manual_seed(seed))


def check(exported, tokens=None, tolerance=1e-4):
    """Compare blocks and head; returns the figures of both."""
    blocks, *last = model_parity.compare_blocks(exported, rows() if tokens is None else tokens, tolerance)
    return blocks, model_parity.compare_head(exported, *last, tolerance)


def fails(exported, tokens=None):
    """The message of a comparison that must fail."""
    with pytest.raises(ParityError) as caught:
        check(exported, tokens)
    return str(caught.value)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("case", CASES)
def test_every_case_passes(tmp_path, case, dtype):
    exported = exported_case(tmp_path, case, dtype=dtype)
    tensor_parity.compare_names(exported)
    blocks, logits = check(exported)
    assert blocks["layers"] == 2
    assert blocks["max_difference"] < 2e-5
    assert blocks["num_rounding"] == 0
    assert logits["max_difference"] <= 1e-4
    assert logits["tokens"] == 2 * LENGTH
    assert 0.5 < logits["std"] < 2


def test_logits_are_those_of_the_whole_model(tmp_path):
    exported = exported_case(tmp_path, "gqa")
    _, ours, _ = model_parity.compare_blocks(exported, rows(), 1e-4)
    model = random_model(recipe_of("gqa"), VOCABULARY)
    with torch.inference_mode():
        assert (model.base_model(rows())[0] - ours).abs().max() < 1e-5


def change_file(exported, name, change):
    """Replace a tensor of the export's file."""
    path = exported.directory / "model.safetensors"
    tensors = load_file(path)
    save_file(tensors | {name: change(tensors[name])}, path, metadata={"format": "pt"})


@pytest.mark.parametrize("name", TENSORS)
def test_one_changed_value_is_named(tmp_path, name):
    """By the smallest step: no output would show it."""
    exported = exported_case(tmp_path, "gqa")

    def change(tensor):
        at = (3,) * tensor.dim()
        tensor[at] = torch.nextafter(tensor[at], torch.tensor(9.0))
        return tensor

    change_file(exported, name, change)
    place = {"model.embed_tokens.weight": "the embedding", "lm_head.weight": "the head"}
    place |= {"model.norm.weight": "the last norm"}
    expected = place.get(name) or f"layer {name.split('.')[2]}"
    message = fails(exported)
    assert message.startswith(f"{expected}: {name} must have the trained bits; 1 of ")
    assert "first at [3" in message


def test_a_tensor_of_another_dtype_is_named(tmp_path):
    exported = exported_case(tmp_path, "gqa")
    change_file(exported, "model.norm.weight", torch.Tensor.bfloat16)
    assert "model.norm.weight must have the dtype torch.float32, found torch.bfloat16" in fails(exported)


def change_config(directory, change):
    path = directory / "config.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))


@pytest.mark.parametrize(
    ("case", "change", "module"),
    [
        ("theta", lambda config: config | {"rope_theta": 5.1e5}, "self_attn"),
        ("theta", lambda config: config | {"rms_norm_eps": 2e-5}, "input_layernorm"),
        # the same shapes
        ("theta", lambda config: config | dict(num_attention_heads=2, head_dim=32, num_key_value_heads=1), "self_attn"),
        ("theta", lambda config: config | {"hidden_act": "gelu"}, "mlp"),
        ("llama3", lambda config: config | {"rope_scaling": config["rope_scaling"] | {"factor": 8.1}}, "self_attn"),
        ("experts", lambda config: config | {"num_experts_per_tok": 3}, "mlp"),
    ],
)
def test_a_wrong_config_fails_in_its_module(tmp_path, case, change, module):
    exported = exported_case(tmp_path, case)
    change_config(tmp_path, change)
    assert fails(exported).startswith(f"the outputs of layer 0, first in {module}, differ by ")


def permuted_twice(weight, heads):
    halves = weight.view(heads, -1, 2, weight.shape[1]).transpose(1, 2).reshape(heads, -1, 2, weight.shape[1])
    return halves.transpose(1, 2).reshape(weight.shape)


@pytest.mark.parametrize("wrong", [lambda weight, heads: weight, permuted_twice], ids=["unpermuted", "twice"])
def test_a_wrong_permutation_fails(tmp_path, monkeypatch, wrong):
    """The bits are those that the wrong function makes; only the outputs show it."""
    monkeypatch.setattr(export, "pairs_to_halves", wrong)
    message = fails(exported_case(tmp_path, "gqa"))
    assert message.startswith("the outputs of layer 0, first in self_attn, differ by ")


def test_gate_and_up_exchanged_fails(tmp_path, monkeypatch):
    """The mistake of FMS's own converter, here in the key table of layer 1."""
    layer_of = key_table._layer

    def swapped(recipe, fms, hf):
        return tuple(
            dataclasses.replace(weight, parts=weight.parts[::-1]) if ".1." in fms and "wg1" in weight.key else weight
            for weight in layer_of(recipe, fms, hf)
        )

    monkeypatch.setattr(key_table, "_layer", swapped)
    assert fails(exported_case(tmp_path, "mha")).startswith("the outputs of layer 1, first in mlp, differ by ")


def test_a_weight_that_is_not_a_number_fails(tmp_path):
    recipe = recipe_of("gqa")
    model = random_model(recipe, VOCABULARY)
    with torch.no_grad():
        model.base_model.layers[1].ff_ln.weight[5] = float("nan")
    assert "layer 1, first in post_attention_layernorm, differ by nan" in fails(write_export(tmp_path, recipe, model))


def sharp(directory, std, seed=0):
    """The export of a model whose attention is sharp."""
    recipe = LlamaRecipe(**SMALL | {"num_key_value_heads": 2, "hidden_size": 128, "max_position_embeddings": 2048})
    model, generator = Transformer(recipe, VOCABULARY), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight.fill_(1) if weight.dim() == 1 else weight.normal_(0, std, generator=generator)
    return write_export(directory, recipe, model)


@pytest.mark.parametrize("std", [0.05, 0.2, 1.0])
def test_sharp_attention_passes_on_a_long_row_and_a_mistake_does_not(tmp_path, std):
    exported = sharp(tmp_path, std)
    blocks, _ = check(exported, rows(2048, 1))
    assert (blocks["num_rounding"] > 0) == (std == 1)  # float64 is computed, and shows that it is rounding
    change_config(tmp_path, lambda config: config | {"rope_theta": 10010.0})
    assert "layer 0, first in self_attn" in fails(exported, rows(2048, 1))


class CountingReader:
    """A `read` that notes how many of its tensors were alive when the next were read."""

    def __init__(self, state):
        self.state, self.references, self.alive = state, [], []

    def __call__(self, keys):
        self.alive.append(sum(reference() is not None for reference in self.references))
        found = {key: self.state[key].clone() for key in keys}
        self.references += [weakref.ref(tensor) for tensor in found.values()]
        return found


def test_80_layers_are_written_and_compared_in_the_memory_of_one(tmp_path):
    """The depth of a 70B model: tensors of one layer at most are held when the next one is read."""
    recipe = LlamaRecipe(**SMALL | {"num_hidden_layers": 80, "hidden_size": 16, "intermediate_size": 24})
    read = CountingReader(random_model(recipe, VOCABULARY).state_dict())
    exported = dataclasses.replace(
        write_export(tmp_path, recipe, random_model(recipe, VOCABULARY), shard_mb=1), read=read
    )
    (tmp_path / "again").mkdir()
    export.write_weights(tmp_path / "again", recipe, VOCABULARY, read, "float32", 1)
    assert len(read.alive) == 82  # the embedding, the layers, the last norm and the head
    blocks, _ = check(exported, rows(32, 1))
    assert blocks["layers"] == 80
    assert len(read.alive) == 2 * 82 + 1  # norm and head apart
    assert max(read.alive) <= len(key_table.build(recipe, VOCABULARY).layers[0])


def test_transformers_modules_hold_no_weights_after_a_comparison(tmp_path, monkeypatch):
    exported, built = exported_case(tmp_path, "gqa"), []
    build = tensor_parity.empty_exported

    def remember(*arguments):
        built.append(build(*arguments))
        return built[-1]

    monkeypatch.setattr(model_parity, "empty_exported", remember)
    check(exported)
    assert all(weight.is_meta for weight in built[0].parameters())


def test_a_router_that_transformers_reads_otherwise_is_named(tmp_path, monkeypatch):
    exported, fill = exported_case(tmp_path, "experts"), parity.fill

    def turned(model, tensors):
        fill(model, {name: -tensor if name.endswith("moe.gate.weight") else tensor for name, tensor in tensors.items()})

    monkeypatch.setattr(parity, "fill", turned)
    assert fails(exported).startswith("the outputs of layer 0, first in mlp.gate, differ by ")


@pytest.mark.parametrize("mistake", ["exchanged", "another expert's"])
def test_wrong_experts_are_named(tmp_path, monkeypatch, mistake):
    experts_of = key_table._experts

    def wrong(*arguments):
        gate, w13, w2 = experts_of(*arguments)
        parts = w13.parts[::-1] if mistake == "exchanged" else w13.parts[2:] + w13.parts[:2]
        return [gate, dataclasses.replace(w13, parts=parts), w2]

    monkeypatch.setattr(key_table, "_experts", wrong)
    assert fails(exported_case(tmp_path, "experts")).startswith("the outputs of layer 0, first in mlp, differ by ")


def test_tokens_whose_experts_rounding_decides_are_counted_and_not_compared(tmp_path):
    recipe = recipe_of("experts")
    model = random_model(recipe, VOCABULARY)
    with torch.no_grad():
        for block in model.base_model.layers:
            gate = block.ff_sub_layer.gate.weight
            gate[1] = gate[0] * (1 + 1e-7 * torch.randn_like(gate[0]))
    figures, _ = check(write_export(tmp_path, recipe, model))
    assert 0 < figures["num_router_ties"] < 2 * 2 * LENGTH  # layers and rows
    assert figures["num_rounding"] == 0
    assert figures["max_difference"] < 2e-5


def test_a_router_without_a_choice_fails(tmp_path):
    recipe = recipe_of("experts")
    model = random_model(recipe, VOCABULARY)
    torch.nn.init.zeros_(model.base_model.layers[1].ff_sub_layer.gate.weight)
    assert fails(write_export(tmp_path, recipe, model)).startswith("the experts of layer 1 cannot be compared")
