"""The least time of a step by parts, from the bytes that it moves and its FLOPs: what its MFU can be at most.

Kernels run one after another, each at the card's rate of copies or of products. The code is counted as it stands, a
function per term; a test holds the terms against the operators of the step itself. Not counted, so that the time is
the least: norms, activations and residuals between products, which torch.compile fuses in its own way, messages between
ranks, the casts of float8, and the launch of kernels. Imports no torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from stages.lib.model import flops, key_table
from tools.plan.subject import PlannedRecipe, Subject

FLOAT8_SPEEDUP = 2
"""Rate of products in float8 beside bfloat16, by NVIDIA's datasheets."""

WIDTHS = {"bfloat16": 2, "float32": 4, "float64": 8}


@dataclass(frozen=True)
class Ceilings:
    """The most that a GPU can do. `copies`: bytes per second, read and written; `products`: bfloat16 FLOP/s."""

    copies: float
    products: float
    source: str
    """The origin of both, for people."""


def uncounted(recipe: PlannedRecipe) -> str | None:
    """Return the key by which a training takes other steps than those that are counted here; None if it does not."""
    keys = {
        "lora": recipe.lora is not None,
        "dpo": recipe.dpo is not None,
        "cpu_offload": recipe.cpu_offload,
        f"optimizer.name {recipe.optimizer.name}": recipe.optimizer.name != "adamw",
    }
    return next((key for key, is_set in keys.items() if is_set), None)


def seconds_of(subject: Subject, ceilings: Ceilings, gpu: int) -> dict[str, float]:
    """Return the least seconds of each part of a step on one rank, unless it is `uncounted`.

    `gpu`: bytes of the GPU, on which the chunks of the loss depend.
    """
    computed = {part: number / ceilings.products for part, number in flops_of(subject).items()}
    return computed | {part: number / ceilings.copies for part, number in bytes_of(subject, gpu).items()}


def flops_of(subject: Subject) -> dict[str, float]:
    """Return the FLOPs of a step on one rank, as those of bfloat16: `products` with weights, and `attention`.

    Attention has half of the scores that flops.FORMULA counts, those of a causal mask, and in its backward pass five
    products instead of four, since it computes the scores again. Rows count as one document each.
    """
    recipe = subject.recipe
    model, seq_len, checkpointing = recipe.model, recipe.seq_len, recipe.activation_checkpointing

    def repeated(length: int) -> int:
        return flops.repeated_flops_per_token(model, length, checkpointing.mode, checkpointing.ratio)

    of_all, of_products = (flops.flops_per_token(model, recipe.vocab_size, length) for length in (seq_len, 0))
    head = 6 * recipe.vocab_size * model.hidden_size
    of_blocks = (of_products - head + repeated(0)) / (FLOAT8_SPEEDUP if recipe.float8 else 1)
    causal = 1 - min(seq_len, model.window or seq_len) / (2 * seq_len)
    attention = causal * ((of_all - of_products) * 7 / 6 + repeated(seq_len) - repeated(0))
    tokens = seq_len * recipe.micro_batch_size * subject.accumulation
    return {"products": (head + of_blocks) * tokens, "attention": attention * tokens}


def bytes_of(subject: Subject, gpu: int) -> dict[str, float]:
    """Return the bytes that a step reads and writes on one rank beside its products, by part. `gpu`: its bytes."""
    recipe, micro_batches = subject.recipe, subject.accumulation
    table = key_table.build(recipe.model, recipe.vocab_size)
    num_all = sum(weight.numel for weight in table.weights)
    num_blocks = sum(weight.numel for layer in table.layers for weight in layer)
    shards = num_shards(subject)
    if subject.world_size > 1:
        num_gathered = num_all + num_blocks * (recipe.sharding in ("full", "hybrid-full"))
        copies = micro_batches * gather(recipe, shards) * num_gathered
        # replicas are reduced once, and until then each adds to whole gradients
        num_reductions = 1 if recipe.sharding == "none" else micro_batches
        copies += num_reductions * reduction(recipe, shards) * num_all
    else:
        copies = micro_batches * casts(recipe, num_all, num_blocks)
    copies += accumulation(recipe) * num_all / shards * (micro_batches - 1 + recipe.cuda_graphs)
    return {
        "copies": copies,
        "embedding": micro_batches * embedding(recipe),
        "loss": micro_batches * loss(recipe, gpu),
        "optimizer": (clipping(recipe) + update(recipe)) * num_all / shards,
    }


def num_shards(subject: Subject) -> int:
    """Return the number of ranks that hold a part of each parameter."""
    hybrid = subject.recipe.shard_degree or subject.ranks_per_node
    return {"none": 1, "hybrid-full": hybrid, "hybrid-grad": hybrid}.get(subject.recipe.sharding, subject.world_size)


def _widths(recipe: PlannedRecipe) -> tuple[int, int]:
    """Return the bytes of a number in the passes, and of a weight and its gradient."""
    width = WIDTHS[recipe.dtype]
    return width, max(WIDTHS[recipe.weights_dtype], width)


def gather(recipe: PlannedRecipe, shards: int) -> float:
    """Return FSDP's bytes per parameter each time that it is gathered: cast, copied in, and copied out."""
    width, wide = _widths(recipe)
    cast = 0 if width == wide else wide + width
    return (cast + (2 * width if shards > 1 else 0)) / shards + 2 * width


def reduction(recipe: PlannedRecipe, shards: int) -> float:
    """Return FSDP's bytes per parameter each time that gradients are reduced; a single rank divides and copies them."""
    width, wide = _widths(recipe)
    reduced = max(4, width)
    return width + reduced + (4 * reduced if shards == 1 else 0) + (reduced + wide if wide != reduced else 0) / shards


def casts(recipe: PlannedRecipe, num_all: int, num_blocks: int) -> float:
    """Return the bytes per micro-batch of layers that cast their own weights, and of their gradients' casts."""
    width, wide = _widths(recipe)
    if width == wide:
        return 0
    checkpointing = recipe.activation_checkpointing
    again = {"none": 0.0, "ratio": checkpointing.ratio or 0.0}.get(checkpointing.mode, 1.0)
    return (wide + width) * (2 * num_all + again * num_blocks)


def accumulation(recipe: PlannedRecipe) -> int:
    """Return the bytes per parameter of adding a gradient to that of the micro-batches before."""
    return 3 * _widths(recipe)[1]


def clipping(recipe: PlannedRecipe) -> int:
    """Return the bytes per parameter of the norm, and of scaled gradients that torch's fused step writes."""
    return _widths(recipe)[1] * (1 if has_one_kernel(recipe) else 2)


def update(recipe: PlannedRecipe) -> int:
    """Return the bytes per parameter of AdamW: a gradient is read, a weight and two moments are read and written."""
    wide = _widths(recipe)[1]
    return 3 * wide + 4 * (2 if recipe.optimizer.state_dtype == "bfloat16" else max(4, wide))


def has_one_kernel(recipe: PlannedRecipe) -> bool:
    """Return true if one kernel of ours is the update, see `adamw.fused`."""
    return "bfloat16" in (recipe.optimizer.state_dtype, recipe.weights_dtype)


def embedding(recipe: PlannedRecipe) -> int:
    """Return the bytes per micro-batch of the rows of tokens, and of the embedding's gradient."""
    width, rows = _widths(recipe)[0], recipe.micro_batch_size * recipe.seq_len
    gradient = recipe.vocab_size * (4 if recipe.model.tie_word_embeddings else 1)  # added to the head's
    return width * recipe.model.hidden_size * (3 * rows + gradient)


def loss(recipe: PlannedRecipe, gpu: int) -> int:
    """Return the bytes per micro-batch of the cross-entropy in chunks, which adds up in at least float32."""
    width = WIDTHS[recipe.dtype]
    wide, chunk = max(4, width), flops.loss_chunk(gpu, recipe.vocab_size)
    tokens, head = recipe.micro_batch_size * recipe.seq_len, recipe.vocab_size * recipe.model.hidden_size
    of_logits = tokens * recipe.vocab_size * 4 * width  # largest, sum, gradient
    of_head = 3 * wide  # its gradient, in chunks a sum and a cast of it
    if width != wide:
        of_head += math.ceil(tokens / chunk) * (width + 2 * wide) + width + wide
    return of_logits + head * of_head + tokens * recipe.model.hidden_size * 4 * width
