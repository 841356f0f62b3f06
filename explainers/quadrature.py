"""Points at which an integral over [0, 1] is taken, and the order in which they are visited."""

from __future__ import annotations

import torch
from torch import Tensor


def gauss_legendre(steps: int) -> tuple[Tensor, Tensor]:
    """Points and weights of Gauss-Legendre quadrature on [0, 1], float64, [steps] each.

    Source   Golub & Welsch 1969: eigenvalues of the Jacobi matrix of the Legendre polynomials
    """
    k = torch.arange(1, steps, dtype=torch.float64)
    beside = k / (4 * k**2 - 1).sqrt()
    values, vectors = torch.linalg.eigh(torch.diag(beside, 1) + torch.diag(beside, -1))
    return (values + 1) / 2, vectors[0] ** 2


def spread(count: int) -> Tensor:
    """The numbers 0 to count - 1 in van der Corput's order: any first few lie evenly over all."""
    digits = max(1, (count - 1).bit_length())
    turned = [int(f"{each:0{digits}b}"[::-1], 2) for each in range(2**digits)]
    return torch.tensor([each for each in turned if each < count])
