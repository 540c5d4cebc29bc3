"""The condition for measuring this machine's GPU: it exists, is large enough, and nobody else uses it."""

from stages.lib.errors import UserError

GIB = 1 << 30
LEAST = 10 * GIB
"""Memory that the checks of correctness need; larger models are left out where they do not fit."""

OTHERS = 1 * GIB
"""Memory in use from which on another process is on the card: the driver itself takes less."""


def check():
    """Return torch's name of the GPU. Raises UserError if it cannot be measured."""
    import torch

    if not torch.cuda.is_available():
        raise UserError(f"the GPU must be one that torch {torch.__version__} can use, and there is none")
    free, total = torch.cuda.mem_get_info()
    name = torch.cuda.get_device_name()
    if total < LEAST:
        raise UserError(f"the GPU must have at least {LEAST / GIB:.0f} GiB of memory, and {name} has {total / GIB:.1f}")
    if total - free > OTHERS:
        raise UserError(f"the GPU must be idle, and {(total - free) / GIB:.1f} GiB of {name} are in use")
    return name
