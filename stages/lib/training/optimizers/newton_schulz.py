"""Orthogonalization of a matrix by the Newton-Schulz iteration of Muon."""

import torch

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic polynomial (https://kellerjordan.github.io/posts/muon/), as in torch.optim.Muon. They make small
singular values large in few steps; all end between about 0.7 and 1.2, not at 1."""

EPS = 1e-7
"""Lower bound of the norm by which a matrix is divided, as in torch.optim.Muon."""


def orthogonalize(matrix: torch.Tensor, steps: int) -> torch.Tensor:
    """Return a matrix [A, B] with the singular vectors of `matrix`, and with singular values near 1.

    All products are computed in the dtype of `matrix`; the operations are those of torch.optim.Muon, which has only
    bfloat16.
    """
    a, b, c = COEFFICIENTS
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if is_tall else matrix
    x = x / x.norm().clamp(min=EPS)
    for _ in range(steps):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if is_tall else x


def cost(rows: int, columns: int) -> float:
    """Return the multiplications and additions of one step."""
    short, long = sorted((rows, columns))
    return 2.0 * short * short * (2 * long + short)


def precision(parameter: torch.Tensor, device: torch.device) -> torch.dtype:
    """Return the dtype of the iteration for a parameter: bfloat16 on a GPU, as torch.optim.Muon has it.

    On the CPU it is that of the parameter. Without AMX, products of bfloat16 take 4 to 150 times as long as those of
    float32 (768 x 768 and 2048 x 768, torch 2.13, with AVX512 and AVX2), and the result must not depend on the kind of
    CPU. float64 stays float64 everywhere, so that shardings agree.
    """
    is_double = parameter.dtype == torch.float64
    return torch.bfloat16 if device.type != "cpu" and not is_double else parameter.dtype
