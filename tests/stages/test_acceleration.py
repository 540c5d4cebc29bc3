"""float8 and CUDA graphs on the command line: without their hardware, and beside keys that they do not go with."""

import pytest
import torch

from stages.lib import recipe
from stages.lib.checkpoints import find_model
from stages.lib.errors import UserError
from stages.lib.model import key_table
from stages.lib.training.settings import requirements
from stages.lib.training.settings.recipe import TrainRecipe
from tests.helpers.training import MODEL, MODELS, RECIPE, events_of, milestone, refused, steps_of, train, train_on

FLOAT8, GRAPHS = {"float8": True, "dtype": "bfloat16"}, {"cuda_graphs": True}
QKV = "(num_attention_heads + 2 x num_key_value_heads) x head_dim"
HEADS = MODEL | {"head_dim": 4, "num_key_value_heads": 1}
NEEDS = "pretrain.float8 requires an NVIDIA GPU of compute capability 8.9 or higher (Ada, Hopper, Blackwell), got "
NEEDS_BFLOAT16 = (
    "pretrain.dtype bfloat16 requires an NVIDIA GPU of compute capability 8.0 or higher (Ampere and later), got "
)


@pytest.mark.parametrize(
    ("keys", "operation", "message"),
    [
        (FLOAT8, {}, NEEDS + "a CPU"),
        ({}, GRAPHS, "pretrain.cuda_graphs requires an NVIDIA GPU, got a CPU"),
        ({"float8": True}, {}, "pretrain.float8 requires dtype bfloat16, got float32"),
        (FLOAT8 | {"model": MODEL | {"intermediate_size": 40}}, {}, "intermediate_size to be a multiple of 16, got 40"),
        (FLOAT8 | {"model": HEADS}, {}, f"{QKV} to be a multiple of 16, got 24"),
        (FLOAT8 | {"seq_len": 20}, {}, "pretrain.seq_len to be a multiple of 16, got 2 x 20 = 40"),
        (FLOAT8 | {"model": MODEL | MODELS["mixtral"]}, {}, "pretrain.float8 must be false for a model with experts"),
        (
            {"weights_dtype": "bfloat16"},
            {},
            "weights_dtype bfloat16 requires pretrain.dtype bfloat16, got float32",
        ),
        (
            {"weights_dtype": "bfloat16", "dtype": "bfloat16", "optimizer": {"name": "muon"}},
            {},
            "pretrain.weights_dtype bfloat16 requires pretrain.optimizer.name adamw, got muon",
        ),
        ({"document_mask": True}, GRAPHS, "pretrain.cuda_graphs must be false with a mask by document (document_mask,"),
        ({}, GRAPHS | {"cpu_offload": True}, "pretrain.cuda_graphs must be false with cpu_offload"),
        ({"model": MODEL | MODELS["mistral"]}, GRAPHS, "must be false for a model with a sliding_window"),
    ],
)
def test_a_training_that_cannot_be_is_one_line_and_leaves_nothing(corpus, tmp_path, capsys, keys, operation, message):
    assert message in refused(capsys, corpus, tmp_path, recipe=RECIPE | keys, **operation)


def test_cuda_graphs_may_be_switched_on_within_a_run(corpus, tmp_path, monkeypatch):
    recipe = {name: value for name, value in RECIPE.items() if name != "dtype"}  # bfloat16
    recipe["model"] = MODEL | {"tie_word_embeddings": False}
    # a CPU trains without a graph, and casts as for one
    monkeypatch.setattr(requirements, "check_device", lambda *_: None)
    for until, graphs in ((5, False), (10, True)):
        assert train(corpus, tmp_path / "switched", until, recipe=recipe, cuda_graphs=graphs) == 0
        assert train(corpus, tmp_path / "plain", until, recipe=recipe) == 0
    losses = [[entry["loss"] for entry in steps_of(tmp_path / name)] for name in ("switched", "plain")]
    assert losses[0] == losses[1] and len(losses[0]) == 10
    assert events_of(tmp_path / "switched")[-1]["event"] == "finish"


def test_weights_in_bfloat16_resume_to_the_same_bits_and_are_half_of_the_bytes(corpus, tmp_path):
    keys = {"dtype": "bfloat16", "weights_dtype": "bfloat16", "optimizer": {"state_dtype": "bfloat16"}}
    found = {}
    for name, untils in (("whole", (10,)), ("resumed", (5, 10))):
        for until in untils:
            assert train(corpus, tmp_path / name, until, recipe=RECIPE | keys) == 0
        model = find_model.find(milestone(tmp_path / name, 10))
        found[name] = model.read(list(key_table.build(model.model_config, model.vocab_size).by_key))
    assert all(torch.equal(tensor, found["resumed"][key]) for key, tensor in found["whole"].items())
    assert {tensor.dtype for tensor in found["whole"].values()} == {torch.bfloat16}


def test_several_ranks_make_no_graph(corpus, tmp_path):
    code, error = train_on(2, corpus, tmp_path, 4, cuda_graphs=True)
    assert code == 2
    (line,) = error.splitlines()
    assert "pretrain.cuda_graphs requires a training on one rank, got 2 ranks" in line


@pytest.mark.parametrize(
    ("capability", "hip", "found"),
    [
        ((7, 5), None, NEEDS_BFLOAT16 + "X with compute capability 7.5; set pretrain.dtype to float32"),
        *(((8, 0), None, NEEDS + "X with compute capability 8.0"), ((8, 9), None, None)),
        *(((9, 4), "6.2", NEEDS + "X"), ((10, 0), None, None)),
    ],
)
def test_a_gpu_is_judged_by_its_compute_capability(monkeypatch, capability, hip, found):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "X")
    monkeypatch.setattr(torch.version, "hip", hip)
    keys = {"steps": 200, "seq_len": 16, "global_batch_size": 1, "float8": True}
    loaded, device = recipe.load(TrainRecipe, keys, "pretrain"), torch.device("cuda")
    if found is None:
        requirements.check_device(loaded, "pretrain", device)
    else:
        with pytest.raises(UserError) as error:
            requirements.check_device(loaded, "pretrain", device)
        assert str(error.value) == found


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_training_in_bfloat16_on_a_cpu_without_units_for_it_is_told_once(corpus, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(requirements, "CPU_INFO", tmp_path / "cpuinfo")
    sentence = "pretrain.dtype is bfloat16, and this CPU has no units for it"
    for number, (features, dtype, count) in enumerate(
        (("fpu avx2", "bfloat16", 1), ("fpu avx2", "float32", 0), ("fpu amx_bf16", "bfloat16", 0))
    ):
        (tmp_path / "cpuinfo").write_text(f"flags : {features}\n")
        assert train(corpus, tmp_path / str(number), 1, recipe=RECIPE | {"dtype": dtype}) == 0
        assert capsys.readouterr().err.count(sentence) == count
