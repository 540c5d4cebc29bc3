"""Write a state dict as ibm-fms and fms-fsdp do, in each of their formats and layouts of keys."""

import warnings

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file

from stages.lib.checkpoints import load_fms
from stages.lib.model import key_table


def unfused(state, recipe):
    """The state dict of `fused_weights: false`: queries, keys and values apart, gate and up apart."""
    made = {}
    for weight in key_table.build(recipe, len(state["head.weight"])).weights:
        names = next((parts for fused, parts in load_fms.UNFUSED.items() if fused in weight.key), None)
        if names is None:
            made[weight.key] = state[weight.key]
            continue
        prefix, suffix = weight.key.rsplit(".", 2)[0].removesuffix(".in_proj"), "weight"
        rows = state[weight.key].split([part.rows for part in weight.parts])
        for name, tensor in zip(names, rows, strict=True):
            made[f"{prefix}.{name.strip('.').split('.', 1)[1]}.{suffix}"] = tensor.clone()
    return made | {"head.weight": state["head.weight"].clone()}


def of_version_0_0_5(state, recipe):
    """The names of ibm-fms before 0.0.6, which fms-fsdp was begun with: unfused, with one `shared` embedding module."""
    made = {}
    for key, tensor in unfused(state, recipe).items():
        name = key.replace("attn.in_proj.", "attn.").replace("base_model.embedding.", "shared.emb.")
        made[name.removeprefix("base_model.").replace("head.weight", "shared.head.weight")] = tensor
    return made


LAYOUTS = {"fused": lambda state, _: state, "unfused": unfused, "0.0.5": of_version_0_0_5}


def _prefixed(state, prefix):
    return {prefix + key: tensor for key, tensor in state.items()}


def write_pth(path, state):
    """As `torch.save(model.state_dict())` with ibm-fms."""
    torch.save(state, path)


def write_fsdp_pth(path, state):
    """As fms-fsdp's `save_single_file` of a compiled model."""
    torch.save({"step": 7, "tokens_seen": 4096, "model_state": _prefixed(state, "_orig_mod.")}, path)


def write_safetensors(path, state):
    """As `save_file(model.state_dict())` with ibm-fms."""
    save_file(state, path)


def write_shards(path, state):
    """The state dict in two files of a directory, which ibm-fms reads too."""
    path.mkdir()
    names = sorted(state)
    for number in range(2):
        save_file({name: state[name] for name in names[number::2]}, path / f"part-{number}.safetensors")


def write_dcp(path, state, prefix=""):
    """As fms-fsdp's `save` on one rank: model and optimizer, with entries that are pickled bytes, and metadata.pth."""
    first = {key: {"step": torch.tensor(7.0), "exp_avg": torch.zeros_like(state[key])} for key in list(state)[:1]}
    optimizer = {"state": first, "param_groups": [{"lr": 1e-3, "betas": (0.9, 0.95), "params": list(state)}]}
    content = {"model_state": _prefixed(state, prefix), "optimizer_state": optimizer}
    writer = dcp.FileSystemWriter(path, single_file_per_rank=True)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        dcp.save(content, storage_writer=writer, no_dist=True)
    torch.save({"step": 7, "tokens_seen": 4096}, path / "metadata.pth")


def write_compiled_dcp(path, state):
    """The same of a compiled model."""
    write_dcp(path, state, "_orig_mod.")


FORMATS = {
    "model.pth": write_pth,
    "step_7_ckp.pth": write_fsdp_pth,
    "model.safetensors": write_safetensors,
    "shards": write_shards,
    "step_7_ckp": write_dcp,
    "step_8_ckp": write_compiled_dcp,
}
"""{name of the file or directory: function that writes it}"""
