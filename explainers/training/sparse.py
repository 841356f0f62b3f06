"""Sparse gradients, such as those of `nn.Embedding(sparse=True)`: edits of their stored values."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def values_of(gradient: Tensor) -> Tensor:
    """Return the gradient, or the stored values of a sparse one, in which every component occurs once."""
    return gradient.coalesce().values() if gradient.layout is torch.sparse_coo else gradient


def with_values(gradient: Tensor, edit: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the gradient with edited values; zeros that a sparse gradient does not store stay zero."""
    if gradient.layout is not torch.sparse_coo:
        return edit(gradient)
    gradient = gradient.coalesce()
    return torch.sparse_coo_tensor(
        gradient.indices(), edit(gradient.values()), gradient.shape, is_coalesced=True, check_invariants=False
    )
