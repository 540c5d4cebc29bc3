"""Parameter counts, FLOPs per token, the peak FLOP/s of devices, and the size of the loss's chunks on a GPU.

FORMULA is printed with every figure that is made by it. This module imports no torch.
"""

from stages.lib.model import key_table
from stages.lib.model.model_recipe import ModelRecipe

FORMULA = (
    "MFU = FLOPs per token x tokens/s per device / dense bfloat16 peak; FLOPs per token = 6 x (parameters without the "
    "input embedding, with the output head also if tied, of experts only those that a token uses) + 12 x "
    "num_hidden_layers x num_attention_heads x head_dim x seq_len (or sliding_window, if it is less); HFU adds the "
    "matrix products of the forward pass that activation checkpointing repeats; with LoRA, 4 x the frozen parameters + "
    "6 x the adapters' take the place of 6 x the parameters"
)

PEAKS = {
    "H100 80GB HBM3": 989e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H200": 989e12,
    "H200 NVL": 835e12,
    "GH200 480GB": 989e12,
    "B200": 2250e12,
    "A100-SXM4-40GB": 312e12,
    "A100-SXM4-80GB": 312e12,
    "A100-PCIE-40GB": 312e12,
    "A100 80GB PCIe": 312e12,
    "A40": 149.7e12,
    "A30": 165e12,
    "A10": 125e12,
    "L40S": 362e12,
    "L4": 121e12,
}
"""FLOP/s of dense bfloat16 matrix products in NVIDIA's datasheets (half of the figures with sparsity), by the device's
whole name: slices of a device and custom builds are other devices."""


def peak_flops(device_name: str) -> float | None:
    """The dense bfloat16 peak in FLOP/s of a device by torch.cuda's name of it; None if it is not known."""
    return PEAKS.get(device_name.removeprefix("NVIDIA "))


def parameter_count(model_config: ModelRecipe, vocab_size: int) -> int:
    """The number of parameters; a tied head is counted once."""
    return sum(weight.numel for weight in key_table.build(model_config, vocab_size).weights)


def active_count(model_config: ModelRecipe, vocab_size: int) -> int:
    """The number of parameters that one token uses: of a sparse model's experts, those that it passes through."""
    return sum(weight.active_numel for weight in key_table.build(model_config, vocab_size).weights)


def flops_per_token(model_config: ModelRecipe, vocab_size: int, seq_len: int, num_adapter: int | None = None) -> int:
    """FLOPs of the forward and the backward pass per token, by FORMULA (PaLM, arXiv 2204.02311, appendix B).

    `num_adapter`: the number of parameters of LoRA's adapters, if they alone are trained: a frozen matrix has no
    gradient, which is a third of its products.
    """
    table = key_table.build(model_config, vocab_size)
    counted = [weight for weight in table.weights if weight is not table.embedding or table.tied]
    without_embedding = sum(weight.active_numel for weight in counted)
    products = 6 * without_embedding if num_adapter is None else 4 * without_embedding + 6 * num_adapter
    return products + 12 * model_config.num_hidden_layers * _attention_size(model_config, seq_len)


def repeated_flops_per_token(model_config: ModelRecipe, seq_len: int, mode: str, ratio: float | None = None) -> int:
    """FLOPs per token of the forward pass that activation checkpointing computes a second time.

    `mode` and `ratio` are ActivationCheckpointingRecipe's. The last matrix product of a block is not repeated, since
    torch stops once it has what the backward pass needs; a sparse block needs its result for the router's gradient.
    full, offload: all other products of every block. ratio: of this share of the blocks. selective: every second
    product of a block (but the last).
    """
    block = key_table.build(model_config, 1).layers[0]
    products = [weight.active_numel for weight in block if weight.columns is not None]  # in their order
    num_layers = model_config.num_hidden_layers
    if mode == "none":
        return 0
    if mode == "selective":
        return 2 * num_layers * sum(products[1:-1:2])
    attention = 4 * _attention_size(model_config, seq_len)
    num_repeated = num_layers
    if mode == "ratio":
        assert ratio is not None
        num_repeated = int(ratio * num_layers + 0.5)  # rounded as parallelize.chosen does
    repeated = products if model_config.router is not None else products[:-1]
    return (2 * sum(repeated) + attention) * num_repeated


def _attention_size(model_config: ModelRecipe, seq_len: int) -> int:
    """The width of all attention heads together, times the tokens to which a token attends, as FORMULA counts them."""
    num_tokens = min(seq_len, model_config.window or seq_len)
    return model_config.num_attention_heads * model_config.head_size * num_tokens


SMALLEST_CHUNK, LARGEST_CHUNK = 512, 4096
"""Tokens per chunk of the loss on a GPU."""

LOGITS_SHARE = 1 / 32
"""Share of a GPU's memory that the logits of a chunk would take in float32 at most, unless it is the smallest."""


def loss_chunk(num_bytes: float, vocab_size: int) -> int:
    """Return the tokens of a chunk of the loss on a GPU with so many bytes of memory: a power of two."""
    tokens = int(num_bytes * LOGITS_SHARE / (4 * vocab_size))
    return min(LARGEST_CHUNK, 1 << max(SMALLEST_CHUNK, tokens).bit_length() - 1)
