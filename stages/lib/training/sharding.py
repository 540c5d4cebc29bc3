"""Spreading a model over the ranks with FSDP2.

    full          parameters, gradients and optimizer are sharded over all ranks (ZeRO-3)
    grad          as full, but gathered parameters stay until the backward pass has used them (ZeRO-2): faster, larger
    hybrid-full   full within groups of `shard_degree` ranks, which are replicas of each other (HSDP)
    hybrid-grad   grad within such groups
    none          every rank holds everything and gradients alone are shared, as DistributedDataParallel does

All are one or two dimensions of a device mesh, so checkpoints of one load under any other.
"""

import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard

from stages.lib.errors import UserError

KINDS = ("full", "grad", "hybrid-full", "hybrid-grad", "none")


def check(plan, where, device):
    """Raise UserError where the ranks that there are cannot be sharded as the recipe says."""
    world_size = dist.get_world_size()
    if plan.cpu_offload and device.type == "cpu":
        raise UserError(f"{where}.cpu_offload must be false without a GPU, got true")
    if not plan.sharding.startswith("hybrid"):
        if plan.shard_degree is not None:
            raise UserError(
                f"{where}.shard_degree must be left out but for hybrid-full and hybrid-grad, got {plan.shard_degree} "
                f"with sharding {plan.sharding}"
            )
        return
    ranks = shard_degree(plan)
    if ranks < 2 or world_size % ranks or world_size // ranks < 2:
        fitting = ", ".join(str(n) for n in range(2, world_size // 2 + 1) if world_size % n == 0)
        raise UserError(
            f"{where}.sharding {plan.sharding} needs at least two groups of at least two ranks: {where}.shard_degree "
            f"(by default the ranks of a node) must be one of {fitting or 'none'} for {world_size} ranks, got {ranks}"
        )


def shard_degree(plan):
    """The ranks of a group over which a hybrid sharding shards."""
    return plan.shard_degree or int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def mesh_of(plan, device):
    """The device mesh of a sharding; its last dimension, `shard`, is the one over which parameters are cut."""
    world_size = dist.get_world_size()
    if plan.sharding == "none":
        shape = (world_size, 1)
    elif plan.sharding.startswith("hybrid"):
        shape = (world_size // shard_degree(plan), shard_degree(plan))
    else:
        shape = (world_size,)
    names = ("replicate", "shard")[-len(shape) :]
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=names)
    if mesh.shape != shape or (plan.sharding in ("full", "grad")) != (mesh.ndim == 1):
        raise AssertionError(f"sharding {plan.sharding} on a mesh of {mesh.shape}")
    return mesh


def shard(model, plan, device):
    """Shard a model on the meta device over all ranks and give it memory; its weights are not yet set.

    Gradients are summed over the ranks, not averaged: the loss is divided by the tokens of the whole global batch.
    Returns the process group over which a parameter's shards lie, for norms. A lone rank whose forward pass has the
    precision of its weights needs nothing of FSDP, and gets nothing.
    """
    if dist.get_world_size() == 1 and plan.dtype != "bfloat16" and not plan.cpu_offload:
        model.to_empty(device=device)
        if (
            model.recipe.tie_word_embeddings
        ):  # to_empty gives each module a tensor of its own; FSDP's parameters stay tied
            model.head.weight = model.base_model.embedding.weight
        return dist.group.WORLD
    mesh = mesh_of(plan, device)
    policy = MixedPrecisionPolicy()
    if plan.dtype == "bfloat16":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    options = {"mesh": mesh, "mp_policy": policy}
    options["offload_policy"] = CPUOffloadPolicy() if plan.cpu_offload else OffloadPolicy()
    keep_gathered = plan.sharding in ("grad", "hybrid-grad", "none")
    for block in model.base_model.layers:
        fully_shard(block, reshard_after_forward=not keep_gathered, **options)
    fully_shard(model, reshard_after_forward=False, **options)  # used again at once, by the backward pass
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo knows no other way to not divide
    model.to_empty(device="cpu" if plan.cpu_offload else device)
    return mesh.get_group("shard")


def share_gradients(model, wanted):
    """Whether the next backward pass reduces gradients over the ranks: only the last of a step must."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(wanted)
