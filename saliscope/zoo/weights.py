"""The hash of the weights of a network."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from saliscope.zoo.model import Model


def weights_hash(model: Model) -> str:
    """Return the SHA-256 of all parameters and buffers with their names."""
    import torch  # takes seconds to start

    digest = hashlib.sha256()
    for name, tensor in sorted(model.network.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
