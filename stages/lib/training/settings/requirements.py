"""The needs of `float8`, `cuda_graphs` and `dtype`. The workflow checks them before the first job, without torch."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from stages.lib.errors import UserError

if TYPE_CHECKING:
    import torch

    from stages.lib.model.model_recipe import ModelRecipe
    from stages.lib.training.settings.recipe import TrainRecipe


MULTIPLE = 16
"""All sizes of a product in float8 must be multiples of it (cuBLAS: rows of 16 bytes)."""

LEAST_CAPABILITY = (8, 9)
"""Compute capability from which an NVIDIA GPU multiplies in float8: Ada, Hopper, Blackwell."""

LEAST_BFLOAT16 = (8, 0)
"""Compute capability from which an NVIDIA GPU multiplies in bfloat16: Ampere and later."""

CPU_INFO = Path("/proc/cpuinfo")

BFLOAT16_FEATURES = {"amx_bf16", "avx512_bf16", "bf16"}
"""CPU features, as Linux names them on x86 and on ARM, with which a CPU multiplies matrices in bfloat16."""


def slow_on_cpu(recipe: TrainRecipe, where: str) -> str | None:
    """Return a sentence if this machine's CPU has no units for the products of a training in bfloat16.

    None also if the features of the CPU are not known. Measured: a step of the demo's model of 4.1 M parameters on an
    AMD EPYC with AVX2, torch 2.13.
    """
    if recipe.dtype != "bfloat16":
        return None
    try:
        features = re.search(r"^(?:flags|Features)\s*:(.*)$", CPU_INFO.read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        return None
    if features is None or BFLOAT16_FEATURES & set(features[1].split()):
        return None
    return (
        f"{where}.dtype is bfloat16, and this CPU has no units for it (AMX or AVX512-BF16): a step on the CPU takes "
        f"several times as long as in float32 (6 times with a model of 4 million parameters on AVX2); to train on "
        f"this CPU, set {where}.dtype to float32"
    )


def check(
    recipe: TrainRecipe, where: str, model: ModelRecipe | None, *, has_lora: bool, has_document_mask: bool
) -> None:
    """Raise UserError if `weights_dtype`, `float8` or `cuda_graphs` does not fit the other keys.

    `model`: None if it is not known yet. `has_document_mask`: attention stays within documents or examples.
    """
    if recipe.weights_dtype == "bfloat16":
        check_weights_dtype(recipe, where, has_lora=has_lora)
    if recipe.float8:
        check_float8(recipe, where, model, has_lora=has_lora)
    if recipe.cuda_graphs:
        check_cuda_graphs(recipe, where, model, has_document_mask=has_document_mask)


def check_weights_dtype(recipe: TrainRecipe, where: str, *, has_lora: bool) -> None:
    """Raise UserError if a training cannot have weights in bfloat16."""
    key = f"{where}.weights_dtype"
    if recipe.dtype != "bfloat16":
        raise UserError(f"{key} bfloat16 requires {where}.dtype bfloat16, got {recipe.dtype}")
    if recipe.optimizer.name != "adamw":
        raise UserError(
            f"{key} bfloat16 requires {where}.optimizer.name adamw, got {recipe.optimizer.name}, which rounds most of "
            "its updates to nothing"
        )
    if has_lora:
        raise UserError(f"{key} must be left out with {where}.lora, whose frozen weights have the precision of dtype")


def check_float8(recipe: TrainRecipe, where: str, model: ModelRecipe | None, *, has_lora: bool) -> None:
    """Raise UserError if a training cannot multiply in float8 on any device."""
    if recipe.dtype != "bfloat16":
        raise UserError(f"{where}.float8 requires dtype bfloat16, got {recipe.dtype}")
    if has_lora:
        raise UserError(
            f"{where}.float8 must be false with {where}.lora, whose frozen matrices have adapters beside them"
        )
    if model is not None and model.router is not None:
        raise UserError(f"{where}.float8 must be false for a model with experts, got architecture {model.architecture}")
    rows = recipe.micro_batch_size * recipe.seq_len
    if rows % MULTIPLE:
        raise UserError(
            f"{where}.float8 requires {where}.micro_batch_size x {where}.seq_len to be a multiple of {MULTIPLE}, got "
            f"{recipe.micro_batch_size} x {recipe.seq_len} = {rows}"
        )
    if model is None:
        return
    sizes = {
        "hidden_size": model.hidden_size,
        "intermediate_size": model.intermediate_size,
        "num_attention_heads x head_dim": model.num_attention_heads * model.head_size,
        "(num_attention_heads + 2 x num_key_value_heads) x head_dim": (
            (model.num_attention_heads + 2 * model.kv_heads) * model.head_size
        ),
    }
    for name, size in sizes.items():
        if size % MULTIPLE:
            raise UserError(f"{where}.float8 requires the model's {name} to be a multiple of {MULTIPLE}, got {size}")


def check_cuda_graphs(recipe: TrainRecipe, where: str, model: ModelRecipe | None, *, has_document_mask: bool) -> None:
    """Raise UserError if a micro-batch cannot be a CUDA graph on any device.

    A graph repeats the same kernels on the same addresses, without the host: masks and routing depend on the batch, and
    offloading copies by the host.
    """
    conflicts = {
        "with a mask by document (document_mask, and fine-tuning)": has_document_mask,
        "with cpu_offload": recipe.cpu_offload,
        "with activation_checkpointing.mode offload": recipe.activation_checkpointing.mode == "offload",
        "for a model with a sliding_window": model is not None and model.window is not None,
        "for a model with experts": model is not None and model.router is not None,
    }
    for conflict, is_there in conflicts.items():
        if is_there:
            raise UserError(f"{where}.cuda_graphs must be false {conflict}, got true")


def check_capability(recipe: TrainRecipe, where: str, name: str, capability: tuple[int, int] | None) -> None:
    """Raise UserError if a device has no products in float8, or a GPU none in bfloat16.

    `name`: the device's. `capability`: its CUDA compute capability; None without CUDA.
    """
    if recipe.dtype == "bfloat16" and capability is not None and capability < LEAST_BFLOAT16:
        raise UserError(
            f"{where}.dtype bfloat16 requires an NVIDIA GPU of compute capability 8.0 or higher (Ampere and later), "
            f"got {name} with compute capability {capability[0]}.{capability[1]}; set {where}.dtype to float32"
        )
    if recipe.float8 and (capability is None or capability < LEAST_CAPABILITY):
        has = "" if capability is None else f" with compute capability {capability[0]}.{capability[1]}"
        least = ".".join(map(str, LEAST_CAPABILITY))
        raise UserError(
            f"{where}.float8 requires an NVIDIA GPU of compute capability {least} or higher (Ada, Hopper, Blackwell), "
            f"got {name}{has}"
        )


def check_device(recipe: TrainRecipe, where: str, device: torch.device) -> None:
    """Raise UserError if this machine's device cannot do what `dtype`, `float8` or `cuda_graphs` needs."""
    import torch

    is_nvidia = device.type == "cuda" and torch.version.hip is None
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "a CPU"
    check_capability(recipe, where, name, torch.cuda.get_device_capability(device) if is_nvidia else None)
    if recipe.cuda_graphs and not is_nvidia:
        raise UserError(f"{where}.cuda_graphs requires an NVIDIA GPU, got {name}")
