"""Starting the ranks of a training, sharding a model over them, and agreeing on what went wrong."""

import contextlib
import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from stages.lib.errors import LoneError, UserError
from stages.lib.log import logger


class AgreedError(UserError):
    """A UserError that every rank raises at the same place."""


@contextlib.contextmanager
def ranks():
    """Join the process group that torchrun describes in the environment; a group of one where there is no torchrun.

    Yields the device of this rank. Raises LoneError in place of a UserError on which the ranks did not agree.
    """
    device = _device()
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    if "RANK" in os.environ:
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    together = False
    try:
        yield device
        together = True
    except AgreedError:
        together = True
        raise
    except UserError as error:
        if dist.get_world_size() == 1:
            raise
        raise LoneError(str(error)) from error
    finally:
        # a rank that fails alone keeps the group, or the others would notice, and speak, before it has said why
        if together or dist.get_world_size() == 1:
            dist.destroy_process_group()


def _device():
    """A GPU of its own for each rank; the CPU where this machine has none, or fewer than ranks."""
    found, wanted = torch.cuda.device_count(), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if found >= wanted:
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
        return device
    if found and os.environ.get("RANK", "0") == "0":
        logger.warning(
            "training on the CPU: %s ranks are more than the GPUs of this machine (%s); set `ranks` in the "
            "profile to use them",
            wanted,
            found,
        )
    return torch.device("cpu")


def shard(model, dtype, device):
    """Shard a model on the meta device over all ranks with FSDP2 and give it memory; its weights are not yet set.

    Gradients are summed over the ranks, not averaged: the loss is divided by the tokens of the whole global batch.
    """
    mesh = init_device_mesh(device.type, (dist.get_world_size(),), mesh_dim_names=("shard",))
    policy = MixedPrecisionPolicy()
    if dtype == "bfloat16":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.base_model.layers:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    for module in model.modules():
        if hasattr(module, "set_gradient_divide_factor"):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo knows no other way to not divide
    model.to_empty(device=device)
    return model


def from_first(value):
    """What the first rank calls with, on every rank; shared file systems may show each rank something else."""
    values = [value]
    dist.broadcast_object_list(values)
    return values[0]


def agree(error):
    """Raise the UserError of any rank as an AgreedError on all ranks; `error` is None where a rank has none."""
    messages = [None] * dist.get_world_size()
    dist.all_gather_object(messages, None if error is None else str(error))
    for message in messages:
        if message is not None:
            raise AgreedError(message)


@contextlib.contextmanager
def agreeing():
    """A block in which a UserError of one rank stops every rank; no rank leaves it before all have come to its end."""
    failed = None
    try:
        yield
    except UserError as error:
        failed = error
    agree(failed)
