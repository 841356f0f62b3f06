"""Linear centered kernel alignment (CKA): how similar two layers represent the same images."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from explainers.network.dtypes import to_float64
from explainers.students_t import t_quantile

FEWEST = 8
"""Images that a comparison of layers needs. The standard deviation for two unrelated layers is about
√(2 / (n (n − 3))), so that 95% of their values are up to 0.44 from 0 with 8 images, and up to 0.52 with 7 images.
"""
LEVEL = 0.95
"""The level of the intervals, of each pair of layers on its own."""
UNDEFINED = float("nan"), float("nan"), float("nan")


def gram_matrix(features: Tensor) -> Tensor:
    """Return the products [N, N] of all pairs of rows of features [N, ...], in float64 if the device has it.

    Rows that differ only by rounding errors of their dtype count as equal.
    """
    rows = to_float64(features.detach().flatten(1))
    centered = rows - rows.mean(0)  # the estimate does not depend on it, and rounding errors are smaller
    if centered.norm() <= 8 * torch.finfo(features.dtype).eps * rows.norm():
        centered = torch.zeros_like(centered)
    return centered @ centered.T


def linear_cka(first: Tensor, second: Tensor) -> tuple[float, float, float]:
    """Return the linear CKA of two Gram matrices [N, N] with the unbiased estimate of HSIC, and its 95% interval.

    The usual biased estimate is close to 1 for any two layers with more features than images. This one is about 0 for
    unrelated layers, so that it is negative for about half of them. The population value, which the interval is for, is
    between 0 and 1. The interval is that of the jackknife over images, on the scale of Fisher's z with the quantile of
    Student's t. A bootstrap is not used: its samples contain images twice, and its intervals are too short.

    Returns  the estimate in [-1, 1], where 1 means equal up to rotation and scale, and the lower and upper limit in
             [0, 1]; NaN for fewer than 8 images, or if a layer gives the same output for all images, or for all but one
             or two
    Source   Kornblith et al. 2019, equation 4, arXiv:1905.00414; unbiased HSIC: Song et al. 2012, equation 5, as in
             Nguyen et al. 2021, equation 3, arXiv:2010.15327; jackknife: Efron & Stein 1981, doi:10.1214/aos/1176345462
    """
    n = len(first)
    if n < FEWEST:
        return UNDEFINED
    products, own, other = _hsic(first, second), _hsic(first, first), _hsic(second, second)
    for spread, gram in ((own, first), (other, second)):
        if not bool((spread > 1e-12 * gram.diagonal().mean() ** 2).all()):
            return UNDEFINED
    found = (products / (own * other).sqrt()).clamp(-1, 1)
    z = found.clamp(-1 + 1e-12, 1 - 1e-12).atanh()
    error = float(((z[1:] - z[1:].mean()).square().sum() * (n - 1) / n).sqrt())
    middle, half = max(0.0, float(z[0])), t_quantile(LEVEL, n - 1) * error
    return float(found[0]), max(0.0, math.tanh(middle - half)), math.tanh(middle + half)


def _hsic(first: Tensor, second: Tensor) -> Tensor:
    """Return the unbiased HSIC [N + 1]: of all images, then without each one."""
    n = len(first)
    a, b = (matrix - torch.diag(matrix.diagonal()) for matrix in (first, second))
    products, a_rows, b_rows = a * b, a.sum(1), b.sum(1)
    a_sum, b_sum = a_rows.sum(), b_rows.sum()

    def estimate(n: int, products: Tensor, sums: Tensor, rows: Tensor) -> Tensor:
        return (products + sums / ((n - 1) * (n - 2)) - 2 * rows / (n - 2)) / (n * (n - 3))

    whole = estimate(n, products.sum(), a_sum * b_sum, (a_rows * b_rows).sum())
    rest = estimate(
        n - 1,
        products.sum() - 2 * products.sum(1),
        (a_sum - 2 * a_rows) * (b_sum - 2 * b_rows),
        ((a_rows - a) * (b_rows - b)).sum(1) - a_rows * b_rows,
    )
    return torch.cat([whole[None], rest])
