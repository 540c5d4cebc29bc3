"""Arithmetic of a Llama: its parameters, the FLOPs of a token, and what devices are able to do.

There is one formula, printed with every figure that is made by it.
"""

FORMULA = (
    "MFU = FLOPs a token x tokens/s a device / dense bfloat16 peak; FLOPs a token = 6 x (parameters without the input "
    "embedding, with the output head also when tied) + 12 x layers x hidden x seq_len, hidden = heads x head_dim; HFU "
    "adds the matrix products of the forward pass that activation checkpointing repeats"
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
"""FLOP/s of dense bfloat16 matrix products in NVIDIA's datasheets (half of what they give with sparsity), by the
device's whole name: slices of a device and custom builds are other devices."""


def peak_flops(device_name):
    """The dense bfloat16 peak in FLOP/s of a device by torch.cuda's name for it; None where it is not known."""
    return PEAKS.get(device_name.removeprefix("NVIDIA "))


def parameter_count(model, vocab_size):
    """The number of parameters of a Llama (`model`: a ModelRecipe) with so many ids; a tied head is counted once."""
    embeddings = vocab_size * model.hidden_size * (1 if model.tie_word_embeddings else 2)
    norms = 2 * model.hidden_size * model.num_hidden_layers + model.hidden_size
    return embeddings + norms + model.num_hidden_layers * sum(_matrices(model).values())


def flops_per_token(model, vocab_size, seq_len):
    """FLOPs of the forward and the backward pass of one token, by FORMULA (PaLM, arXiv 2204.02311, appendix B)."""
    tied = vocab_size * model.hidden_size if model.tie_word_embeddings else 0
    without_embedding = parameter_count(model, vocab_size) + tied - vocab_size * model.hidden_size
    return 6 * without_embedding + 12 * model.num_hidden_layers * _hidden(model) * seq_len


def repeated_flops_per_token(model, seq_len, kind, ratio=None):
    """FLOPs a token of what activation checkpointing computes a second time.

    `kind` and `ratio` are ActivationRecipe's. A block's last matrix product (w2) is never repeated, since torch stops
    once it has what the backward pass needs. full, offload: all else of every block. ratio: of this share of the
    blocks. selective: of every second matrix product, of which there are two a block, w2 and attn.dense: so the latter.
    """
    matrices = _matrices(model)
    if kind == "none":
        return 0
    if kind == "selective":
        return 2 * model.num_hidden_layers * matrices["dense"]
    attention = 4 * _hidden(model) * seq_len
    block = 2 * (sum(matrices.values()) - matrices["w2"]) + attention
    blocks = (
        int(ratio * model.num_hidden_layers + 0.5) if kind == "ratio" else model.num_hidden_layers
    )  # as activation.chosen rounds
    return block * blocks


def _hidden(model):
    return model.num_attention_heads * model.head_dim


def _matrices(model):
    """The parameters of each matrix of a block."""
    return {
        "qkv_fused": model.hidden_size * (model.num_attention_heads + 2 * model.kv_heads) * model.head_dim,
        "dense": model.hidden_size * _hidden(model),
        "wg1_fused": 2 * model.hidden_size * model.intermediate_size,
        "w2": model.hidden_size * model.intermediate_size,
    }
