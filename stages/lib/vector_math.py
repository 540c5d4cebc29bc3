"""The first call of MKL's vector functions, which must not be made by several threads at once.

torch passes long float tensors to them (`cos`, `exp`, ...) in pieces, one per thread. MKL 2024, which torch 2.13 is
linked with, chooses the kernel of a function when it is first called; a second thread that calls it meanwhile can get a
kernel of low accuracy, for this one call (https://github.com/pytorch/pytorch/issues/188792). On a busy machine up
to one new process in a thousand computed cosines that were wrong by 1.5e-4, so the angles of a whole training, or of
the model that an export is compared with.
"""

import torch

FUNCTIONS = (torch.cos, torch.sin, torch.exp, torch.log, torch.sqrt, torch.tanh)
"""Those that models and their losses call."""


def choose_kernels() -> None:
    """Call each function on one number, which takes one thread. A module whose tensors are large does so on import."""
    for dtype in (torch.float32, torch.float64):
        one = torch.ones(1, dtype=dtype)
        for function in FUNCTIONS:
            function(one)
