"""This rank's shard of a tensor that is sharded over the ranks (DTensor). A plain tensor is its own shard."""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset


def local_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's shard of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def local_rows(parameter: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Return this rank's rows of a parameter, and the global index of the first of them.

    Raises AssertionError if the parameter is sharded along another dimension.
    """
    if not isinstance(parameter, DTensor):
        return parameter, 0
    shape, offset = compute_local_shape_and_global_offset(parameter.shape, parameter.device_mesh, parameter.placements)
    if shape[1:] != parameter.shape[1:]:
        raise AssertionError(f"parameters must be sharded by rows only, found {parameter.placements}")
    return parameter.to_local(), offset[0]
