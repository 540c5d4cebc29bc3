"""The planned memory of a step: parts, and a deep model by two shallow ones."""

import dataclasses
import importlib.metadata
import json
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import speed
from stages.lib.errors import UserError
from stages.lib.model.flops import parameter_count
from tools.plan import fake_step, memory, subject
from tools.plan.subject import Subject

SHAPE = {"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 64, "intermediate_size": 96}
VOCAB = 512
GPU = 80 << 30
HOME = Path(__file__).resolve().parents[3]


def training(layers=2, ranks=4, ranks_per_node=2, model=None, stage="pretrain", **keys):
    """A training of a small Llama."""
    shape = SHAPE | {"num_hidden_layers": layers} | (model or {})
    own = {"steps": 4, "seq_len": 64, "global_batch_size": ranks, "dtype": "bfloat16"} | keys
    return Subject(subject.load(stage, own, shape, VOCAB, "test"), ranks, ranks_per_node)


def peak(planned, gpu=GPU):
    return memory.memory_of(planned, gpu).peak


def test_weights_and_optimizer_state_are_exact_shards():
    planned = training(sharding="full")
    parameters = parameter_count(planned.recipe.model, VOCAB)
    found = memory.memory_of(planned, gpu=GPU)
    vectors = 64 * 3 + 64 * 2  # RMSNorm's, at most this many elements of padding
    assert parameters * 4 / 4 <= found.parts["weights"] <= parameters * 4 / 4 + 4 * vectors
    tensors = 2 * 6 + 3
    assert found.parts["optimizer"] == 2 * found.parts["weights"] + 4 * tensors  # two moments, and a count of steps
    assert found.checkpoint[1] == 12 * parameters
    assert found.num_trained == parameters


LONG = pytest.mark.long
FULL, SELECTIVE = ({"activation_checkpointing": {"mode": mode}} for mode in ("full", "selective"))
DEEP = {
    "full": pytest.param({"sharding": "full"} | SELECTIVE),
    "accumulated": pytest.param({"sharding": "hybrid-grad", "shard_degree": 2, "global_batch_size": 16}, marks=LONG),
    "replicated": pytest.param({"sharding": "none", "optimizer": {"state_dtype": "bfloat16"}} | FULL, marks=LONG),
}


@pytest.mark.parametrize("keys", DEEP.values(), ids=DEEP)
def test_a_deep_model_has_the_memory_of_its_whole_step(keys, monkeypatch):
    planned = training(layers=8, **keys)
    by_two = memory.memory_of(planned, gpu=GPU)
    monkeypatch.setattr(memory, "SHALLOW", (98, 99))
    whole = memory.memory_of(planned, gpu=GPU)
    assert abs(by_two.peak - whole.peak) <= 64  # counts of steps, in bytes
    assert by_two == dataclasses.replace(whole, parts=by_two.parts)


def test_activation_checkpointing_and_small_micro_batches_need_less():
    modes = [
        peak(training(layers=4, seq_len=256, activation_checkpointing={"mode": mode}))
        for mode in ("none", "selective", "full")
    ]
    assert modes == sorted(modes, reverse=True) and len(set(modes)) == 3
    assert peak(training(seq_len=256, global_batch_size=16, micro_batch_size=4)) > peak(training(seq_len=256))


def test_compiled_layers_compute_silu_again():
    tokens, peaks = 256, [peak(training(layers=4, seq_len=256, compile=compiled)) for compiled in (False, True)]
    assert peaks[0] - peaks[1] == 4 * tokens * SHAPE["intermediate_size"] * 2
    assert peak(training(compile=True), gpu=None) == peak(training(), gpu=None)


@pytest.mark.parametrize(
    ("card", "cell"),
    [
        ("h200", speed.EQUAL["llama3-1b"][0]),
        ("h100", speed.Cell(**speed.HALF, micro_batch_size=1, accumulation=8, mode="selective")),
    ],
    ids=["not checkpointed", "selective"],
)
def test_the_plan_is_what_a_gpu_allocated(card, cell):
    measured = json.loads((HOME / f"benchmarks/results/gpu_{card}/speed.json").read_text())["steps"][cell.name]
    planned = memory.memory_of(speed.subject_of(cell), GPU).peak
    assert abs(planned / measured["measured_bytes"] - 1) < 0.005


def test_gradients_that_are_accumulated_over_micro_batches_stay_sharded():
    once, often = (memory.memory_of(training(layers=4, global_batch_size=size), True) for size in (4, 16))
    parameters = parameter_count(training(layers=4).recipe.model, VOCAB)
    assert often.parts["gradient_buffers"] == once.parts["gradient_buffers"] < 4 * parameters
    assert often.peak - once.peak < 1.02 * parameters  # a shard of the gradients of the micro-batch before


@pytest.mark.parametrize(
    ("dtype", "head_dim", "is_exact"), [("bfloat16", 16, False), ("float32", 16, True), ("bfloat16", 12, True)]
)
def test_a_mask_by_document_takes_memory_where_there_is_no_kernel(dtype, head_dim, is_exact):
    plain, masked = (
        peak(training(document_mask=mask, dtype=dtype, model={"head_dim": head_dim})) for mask in (False, True)
    )
    assert (masked - plain >= 64 * 64) == is_exact


def test_what_is_offloaded_is_in_cpu_memory():
    whole = memory.memory_of(training(layers=4), True)
    offloaded = memory.memory_of(training(layers=4, cpu_offload=True), True)
    assert offloaded.host >= whole.parts["weights"] + whole.parts["optimizer"]
    assert offloaded.parts["weights"] == offloaded.parts["optimizer"] == 0
    inputs = memory.memory_of(training(layers=4, activation_checkpointing={"mode": "offload"}), True)
    assert inputs.host >= 4 * 64 * 64 * 2  # of each block [1, L, D] in bfloat16


@pytest.mark.parametrize(
    ("model", "stage", "keys"),
    [
        ({"architecture": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}, "pretrain", {}),
        pytest.param({}, "pretrain", {"optimizer": {"name": "muon"}}, marks=LONG),
        pytest.param({}, "finetune", {"dpo": {"beta": 0.1}}, marks=LONG),
        ({}, "finetune", {"lora": {"rank": 2}}),
    ],
    ids=["experts", "muon", "dpo", "lora"],
)
def test_every_kind_of_training_is_planned(model, stage, keys):
    found = memory.memory_of(training(model=model, stage=stage, **keys), gpu=GPU)
    total = 2 * parameter_count(training(model=model).recipe.model, VOCAB)
    assert found.peak > total / 4
    assert (found.num_trained < total / 2 / 4) == ("lora" in keys)


def test_a_sharding_that_does_not_fit_the_ranks_is_refused_as_by_the_trainer():
    with pytest.raises(UserError, match=r"pretrain.sharding hybrid-full needs at least two groups"):
        peak(training(ranks=2, sharding="hybrid-full"))
    assert not torch.distributed.is_initialized()


def test_float8_keeps_one_byte_per_input_of_a_product():
    # of each layer: the inputs of four products, three of 64 and one of 96, had two bytes per value
    kept = [training(ranks=2, float8=float8, model={"num_hidden_layers": 6}) for float8 in (False, True)]
    plain, cast = (memory.memory_of(planned, gpu=GPU).parts["activations"] for planned in kept)
    assert 0 < plain - cast <= 6 * 64 * (3 * 64 + 96)


def test_cuda_graphs_keep_gradients_and_cast_weights():
    plain, graphed = (
        memory.memory_of(training(ranks=1, cuda_graphs=graphs, seq_len=2048), gpu=GPU) for graphs in (False, True)
    )
    assert plain.segment == graphed.segment == "loss"
    assert plain.parts["gradients"] == 0 and graphed.parts["gradients"] == graphed.parts["weights"]
    assert graphed.peak > plain.peak


def test_a_large_vocabulary_costs_no_more_calls_of_the_fake_step():
    small, large = (
        len(fake_step.take(dataclasses.replace(training(), recipe=recipe), gpu=None).log.changes)
        for recipe in (training().recipe, dataclasses.replace(training().recipe, vocab_size=128_000))
    )
    assert large <= small


def test_a_plan_by_another_torch_is_used_only_where_it_is_allowed(monkeypatch, tmp_path):
    planned, computed = training(ranks=1), []
    plain = memory.memory_of(planned, GPU)
    monkeypatch.setattr(memory, "memory_of", lambda planned, gpu: computed.append(gpu) or plain)
    for version, ignored in (("2.13", False), ("2.13", False), ("2.11", False), ("2.13", True), ("2.11", True)):
        monkeypatch.setattr(importlib.metadata, "version", lambda package, version=version: version)
        monkeypatch.setattr(memory, "_COMPUTED", {})  # of another process
        assert memory.cached_memory_of(planned, GPU, tmp_path, ignored) == plain
    assert len(computed) == 3
