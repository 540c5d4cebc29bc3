"""This rank's part of tensors that are sharded over the ranks (DTensor); whole tensors are their own part."""

from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset


def local(tensor):
    """This rank's part of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def local_rows(parameter):
    """This rank's rows of a parameter, and the global number of the first of them."""
    if not isinstance(parameter, DTensor):
        return parameter, 0
    shape, offset = compute_local_shape_and_global_offset(parameter.shape, parameter.device_mesh, parameter.placements)
    if shape[1:] != parameter.shape[1:]:
        raise AssertionError(f"weights are sharded by rows alone, found {parameter.placements}")
    return parameter.to_local(), offset[0]
