"""Parameter and FLOP counts against the model itself and against torch's FLOP counter."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from stages.lib.model import flops, key_table
from stages.lib.model.architectures import LlamaRecipe, MixtralRecipe
from stages.lib.model.key_table import LoraRecipe
from stages.lib.model.lora import adapter_shapes, add_adapters
from stages.lib.model.transformer import Transformer
from stages.lib.training import parallelize
from tests.helpers.training import MODEL

SIZES = MODEL | {"num_hidden_layers": 3, "hidden_size": 64, "intermediate_size": 96, "tie_word_embeddings": False}
SMALL = LlamaRecipe(**SIZES)
SPARSE = MixtralRecipe(architecture="mixtral", num_local_experts=5, **SIZES)
LLAMA_3_8B = LlamaRecipe(
    num_hidden_layers=32, hidden_size=4096, num_attention_heads=32, num_key_value_heads=8, intermediate_size=14336
)
VOCABULARY, SEQ_LEN = 320, 64


def test_a_tied_head_counts_in_the_flops():
    tied, untied = (LlamaRecipe(**MODEL | {"tie_word_embeddings": tie}) for tie in (True, False))
    assert flops.parameter_count(untied, 320) - flops.parameter_count(tied, 320) == 320 * 32
    assert flops.flops_per_token(untied, 320, 64) == flops.flops_per_token(tied, 320, 64)


def test_a_published_utilization_comes_out():
    # KempnerForge: 8B on an H200 at 4,096 tokens, 10,471 tokens/s are 54.5%
    rate = 10_471 * flops.flops_per_token(LLAMA_3_8B, 128_256, 4096) / flops.peak_flops("NVIDIA H200")
    assert rate == pytest.approx(0.545, abs=5e-4)


def counted(mode, ratio=None, lora=None, config=SMALL):
    """FLOPs per token of the matrix products of a forward and backward pass, and of attention's forward passes."""
    torch.manual_seed(0)
    model = Transformer(config, VOCABULARY)
    if lora is not None:
        add_adapters(model, lora)
    parallelize.apply_activation_checkpointing(model, parallelize.ActivationCheckpointingRecipe(mode=mode, ratio=ratio))
    tokens = torch.randint(VOCABULARY, (2, SEQ_LEN))

    def attention(query, key, *_, **__):
        batch, heads, length, head_dim = query
        return 4 * batch * heads * length * key[2] * head_dim

    mapping = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: attention}
    with FlopCounterMode(display=False, custom_mapping=mapping) as counter:
        sum(model(tokens, tokens)[:2]).backward()
    return counter.get_total_flops() / tokens.numel()


DENSE = [("ratio", 0.5), ("ratio", 1.0), ("selective", None)]
# of a sparse model not selective: the kernel of a GPU computes one product for all experts, the loop of a CPU one each
BOTH = [("ratio", 0.3), ("full", None), ("offload", None)]


@pytest.mark.parametrize(
    ("config", "mode", "ratio"), [*((SMALL, *case) for case in DENSE + BOTH), *((SPARSE, *case) for case in BOTH)]
)
def test_what_is_repeated_is_what_torch_computes_again(config, mode, ratio):
    repeated = flops.repeated_flops_per_token(config, SEQ_LEN, mode, ratio)
    assert counted(mode, ratio, config=config) - counted("none", config=config) == repeated > 0
    assert flops.repeated_flops_per_token(config, SEQ_LEN, "none") == 0


@pytest.mark.parametrize("config", [SMALL, SPARSE], ids=["llama", "mixtral"])
def test_the_model_flops_are_what_torch_counts_and_the_norms(config):
    norms = 2 * SMALL.hidden_size * SMALL.num_hidden_layers + SMALL.hidden_size
    attention_backward = 8 * SMALL.num_hidden_layers * SMALL.hidden_size * SEQ_LEN
    head_gradient = 2 * VOCABULARY * SMALL.hidden_size  # added in place, which torch's counter does not see
    aux_loss = 4 * config.num_hidden_layers * config.router.num_experts if config.router else 0  # two sums over tokens
    found = counted("none", config=config) + attention_backward + head_gradient + 6 * norms - aux_loss
    assert found == flops.flops_per_token(config, VOCABULARY, SEQ_LEN)


def test_lora_computes_no_gradient_of_a_frozen_matrix():
    lora = LoraRecipe(rank=4)
    table = key_table.build(SMALL, VOCABULARY)
    norms = 2 * SMALL.hidden_size * SMALL.num_hidden_layers + SMALL.hidden_size
    attention_backward = 8 * SMALL.num_hidden_layers * SMALL.hidden_size * SEQ_LEN
    # nothing before the first projection is trained: its input needs no gradient
    first = table.by_key["base_model.layers.0.attn.in_proj.qkv_fused.weight"].numel + 3 * lora.rank * SMALL.hidden_size
    found = counted("none", lora=lora) + attention_backward + 4 * norms + 2 * first
    num_adapter = sum(rows * columns for rows, columns in adapter_shapes(table, lora).values())
    assert found == flops.flops_per_token(SMALL, VOCABULARY, SEQ_LEN, num_adapter)


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None),
        ("NVIDIA GeForce RTX 4090", None),
    ],
)
def test_peak_is_that_of_the_device_or_unknown(name, peak):
    assert flops.peak_flops(name) == peak
