"""The keys under which ibm-fms and fms-fsdp store the tensors of our key table.

Between versions of ibm-fms the names differ, and by an option (`fused_weights`) queries, keys and values, or gate and
up, are one matrix or several. torch.compile, DDP, FSDP and activation checkpointing put their own names between.
Rows have one order everywhere: no tensor but these concatenations is changed.
"""

import re
from collections.abc import Iterable

from stages.lib.errors import UserError
from stages.lib.model.keys import Weight

WRAPPERS = {"_orig_mod", "module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
"""torch.compile, DDP, FSDP and activation checkpointing."""

RENAMED = (
    (r"^shared\.emb\.", "base_model.embedding."),  # ibm-fms before 1.4 had no `base_model`
    (r"^shared\.head\.", "head."),
    (r"^(layers|dec_norm)\.", r"base_model.\1."),
    (r"\.attn\.(query|key|value)\.", r".attn.in_proj.\1."),  # before 0.0.6
)

UNFUSED = {
    ".attn.in_proj.qkv_fused.": (".attn.in_proj.query.", ".attn.in_proj.key.", ".attn.in_proj.value."),
    ".ff_sub_layer.wg1_fused.": (".ff_sub_layer.wg.", ".ff_sub_layer.w1."),
}
"""{fused: its parts, from the top row down}"""


def current_name(key: str) -> str:
    """Return the name of a stored tensor in ibm-fms 1.4 and later, with `fused_weights` on or off."""
    name = ".".join(part for part in key.split(".") if part not in WRAPPERS)
    for old, new in RENAMED:
        name = re.sub(old, new, name)
    return name


def by_current_name(keys: Iterable[str], path: object) -> dict[str, str]:
    """Return {current name: stored key}. Raises UserError if a tensor stands there under two keys."""
    found: dict[str, str] = {}
    for key in keys:
        name = current_name(key)
        if name in found:
            raise UserError(f"{path} must hold {name} once, found it as {found[name]} and as {key}")
        found[name] = key
    return found


def of_experts(weight: Weight) -> list[int] | None:
    """Return the shape in which ibm-fms stores the experts of a layer, apart from each other: [E, rows, columns].

    None for a weight of no experts.
    """
    if ".cond_ffn." not in weight.key:
        return None
    num_experts = len(weight.parts) // (2 if weight.key.endswith(".w13") else 1)
    rows, columns = weight.shape
    return [num_experts, rows // num_experts, columns]


def stored_shapes(weight: Weight, names: Iterable[str]) -> dict[str, list[int]]:
    """Return {name: shape} of the tensors that make a weight, from the top row down.

    `names`: the current names that a checkpoint has. A weight of which it has nothing counts as fused.
    """
    for fused, parts in UNFUSED.items():
        unfused = [weight.key.replace(fused, part) for part in parts]
        if fused in weight.key and not set(names).isdisjoint(unfused):
            return dict(zip(unfused, weight.part_shapes().values(), strict=True))
    return {weight.key: weight.shape}
