"""Linear centered kernel alignment (CKA): how similar two layers represent the same images."""

from __future__ import annotations

import torch
from torch import Tensor

from explainers.network.dtypes import to_float64

FEWEST = 4
"""Images that the unbiased estimate needs."""


def gram_matrix(features: Tensor) -> Tensor:
    """Return the products [N, N] of all pairs of rows of features [N, ...], in float64 if the device has it."""
    rows = to_float64(features.detach().flatten(1))
    rows = rows - rows.mean(0)  # the estimate does not depend on it, and rounding errors are smaller
    return rows @ rows.T


def linear_cka(first: Tensor, second: Tensor) -> float:
    """Return the linear CKA of two Gram matrices [N, N], with the unbiased estimate of HSIC.

    The usual biased estimate is close to 1 for any two layers with more features than images; this one is about 0 for
    unrelated layers.

    Returns  at most 1, which means equal up to rotation and scale; NaN for fewer than 4 images, or if a layer gives the
             same output for all images
    Source   Kornblith et al. 2019, equation 4, arXiv:1905.00414; unbiased HSIC: Song et al. 2012, equation 5, as in
             Nguyen et al. 2021, equation 3, arXiv:2010.15327
    """
    if len(first) < FEWEST:
        return float("nan")
    spread = float(_hsic(first, first)) * float(_hsic(second, second))
    return float(_hsic(first, second)) / spread**0.5 if spread > 0 else float("nan")


def _hsic(first: Tensor, second: Tensor) -> Tensor:
    n = len(first)
    a, b = (matrix - torch.diag(matrix.diagonal()) for matrix in (first, second))
    products = (a * b).sum() + a.sum() * b.sum() / ((n - 1) * (n - 2)) - 2 * (a @ b).sum() / (n - 2)
    return products / (n * (n - 3))
