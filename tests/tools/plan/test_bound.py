"""The bound of a step: its terms against the operators of the step itself."""

import math
from collections import Counter
from unittest import mock

import pytest
import torch
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from stages.lib.distributed import collectives
from stages.lib.model import loss
from tests.tools.plan.test_memory import GPU, VOCAB, training
from tools.plan import bound, fake_step

PRODUCTS = ("mm", "addmm", "bmm", "_scaled_dot_product", "_grouped_mm")
ROWS = ("gather", "scatter_add_", "embedding")
"""Operators that touch the rows that are named alone."""

WRITTEN = ("copy_", "_foreach_copy_", "zero_", "_foreach_zero_", "split_with_sizes_copy", "chunk_cat")
"""Operators that do not read what they write."""

ALLOCATIONS = ("empty", "new_empty", "detach")


def bytes_moved(operator, args, kwargs, result):
    """Return the bytes that a memory-bound operator reads and writes."""
    name, arguments = operator._schema.name.partition("::")[2], operator._schema.arguments
    aliases = [argument.alias_info is not None for argument in arguments]
    writes = [argument.alias_info is not None and argument.alias_info.is_write for argument in arguments]
    is_view = any(aliases) and not any(writes)
    if operator.namespace in ("prim", "c10d") or is_view or name.startswith((*PRODUCTS, *ALLOCATIONS)):
        return 0
    of = [size(value) for value in (*args, *(kwargs.get(argument.name) for argument in arguments[len(args) :]))]
    if name in ROWS:
        return 2 * min(size(result), *(number for number in of if number))
    if name == "all_gather_copy_in":
        return 2 * of[0]
    if name == "_fused_adamw_":  # it writes gradients only if it scales them
        return sum(of) + sum(of[index] for index in (0, 2, 3)) + (of[1] if kwargs.get("grad_scale") is not None else 0)
    read = sum(number for number, is_written in zip(of, writes, strict=True) if not (is_written and name in WRITTEN))
    return read + (sum(number for number, is_written in zip(of, writes, strict=True) if is_written) or size(result))


def size(tensors):
    return sum(collectives.local_tensor(leaf).nbytes for leaf in tree_leaves(tensors) if isinstance(leaf, torch.Tensor))


class MovedBytes(fake_step.AllocationLog):
    """Counts the bytes of a step, by the segments of the log of its allocations."""

    counted = Counter()

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        result = super().__torch_dispatch__(operator, types, args, kwargs)
        MovedBytes.counted[self.segment.partition("/")[0]] += bytes_moved(operator, args, kwargs or {}, result)
        return result

    def forget_past(self):
        super().forget_past()
        MovedBytes.counted.clear()


def counted_bytes(planned):
    """Return the bytes that the memory-bound operators of a step move, by segment."""

    def fused_update(gradient, *changed_and_rest):
        MovedBytes.counted["update"] += size(gradient) + 2 * size(changed_and_rest[:3])

    patched = mock.patch.object(fake_step, "fused_update", fused_update)
    with mock.patch.object(fake_step, "AllocationLog", MovedBytes), patched:
        fake_step.take(planned, GPU)
    return dict(MovedBytes.counted)


WIDE = {"hidden_size": 256, "intermediate_size": 768}
BFLOAT16_MOMENTS = {"optimizer": {"state_dtype": "bfloat16"}}
RECOMPUTED = {"activation_checkpointing": {"mode": "full"}}
GRAPHS = {"cuda_graphs": True, "global_batch_size": 2}
STEPS = {
    "bfloat16": (1, {"global_batch_size": 3}),
    "bfloat16 kept": (1, {"sharding": "grad"} | BFLOAT16_MOMENTS),
    "float32": (1, {"dtype": "float32", "global_batch_size": 2}),
    "graphs": (1, GRAPHS),
    "casts again": (1, RECOMPUTED | BFLOAT16_MOMENTS),
    "weights in bfloat16": (1, {"weights_dtype": "bfloat16", "global_batch_size": 2} | BFLOAT16_MOMENTS),
    "sharded weights in bfloat16": (4, {"weights_dtype": "bfloat16"}),
    "tied": (1, {"model": WIDE | {"tie_word_embeddings": True}}),
    "sharded": (4, {"global_batch_size": 12}),
    "sharded float32": (4, {"dtype": "float32"}),
    "hybrid": (4, {"sharding": "hybrid-grad", "global_batch_size": 8}),
    "replicated": (4, {"sharding": "none"}),
}


@pytest.mark.parametrize(("num_ranks", "keys"), STEPS.values(), ids=STEPS)
def test_bytes_of_weights_are_those_of_the_steps_operators(num_ranks, keys):
    # so few tokens that activations, which are not counted, are next to nothing
    planned = training(layers=3, ranks=num_ranks, **{"model": WIDE, "seq_len": 4} | keys)
    found, counted = bound.bytes_of(planned, GPU), counted_bytes(planned)
    tolerance = 0.1 if "weights_dtype" in keys else 0.05  # activations are a larger share of fewer bytes
    assert sum(found.values()) == pytest.approx(sum(counted.values()), rel=tolerance)
    if planned.accumulation == 1:  # FSDP adds the last gradients to the others at the very end
        assert found["optimizer"] == pytest.approx(counted["update"], rel=0.01)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bytes_of_the_loss_are_those_of_its_operators(dtype):
    planned = training(layers=1, ranks=1, dtype=dtype, seq_len=1280)
    # over the logits, by single operators more than by the compiled kernels of a GPU
    passes = {"float32": 16, "bfloat16": 36}[dtype] * 1280 * VOCAB
    with mock.patch.object(fake_step, "fused_losses", loss.losses_and_gradient):
        counted = counted_bytes(planned)["loss"]
    assert bound.bytes_of(planned, GPU)["loss"] + passes == pytest.approx(counted, rel=0.1)


def products(number):
    """Return a function that counts so many products of all scores, as torch does for a GPU's kernels."""
    return lambda shape, *_, **__: number * 2 * math.prod(shape) * shape[2]  # [B, H, L, hd]


FLASH = "_scaled_dot_product_flash_attention_for_cpu"
ATTENTION = {getattr(torch.ops.aten, FLASH + name): products(n) for name, n in (("", 2), ("_backward", 5))}


@pytest.mark.parametrize("keys", [{}, RECOMPUTED, {"activation_checkpointing": {"mode": "selective"}}])
def test_flops_are_those_of_the_steps_products(keys):
    planned = training(layers=3, ranks=1, seq_len=256, global_batch_size=2, **keys)
    with FlopCounterMode(display=False, custom_mapping=ATTENTION) as counter:
        fake_step.take(planned, GPU)
    counted = counter.get_flop_counts()["Global"]
    attention = sum(number for operator, number in counted.items() if "attention" in str(operator))
    found = bound.flops_of(planned)
    assert found["products"] == pytest.approx(sum(counted.values()) - attention, rel=0.01)  # vectors
    assert found["attention"] == pytest.approx(attention / 2)  # torch counts the scores that a causal mask leaves out
