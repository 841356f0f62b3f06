"""Diagnosis of a failed forward pass: images with another number of channels than the network takes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from explainers.errors import BadImages, ExplainerError, is_out_of_memory

_WORDS = ("channel", "size", "shape", "match", "expected", "dimension", "must be", "assert")


def check_channel_count(network: nn.Module, images: Tensor, error: Exception) -> None:
    """Raise an error if the network fails for these images, but accepts another number of channels.

    Runs only after a call failed, so it may cost a few forward passes of one image.

    Errors   BadImages
    """
    if isinstance(error, ExplainerError) or is_out_of_memory(error) or images.ndim != 4:
        return
    is_assertion = isinstance(error, AssertionError)
    if not is_assertion and not (
        isinstance(error, (RuntimeError, ValueError, IndexError)) and any(w in str(error).lower() for w in _WORDS)
    ):
        return
    given = images.shape[1]
    one = images[:1].detach()
    if _runs(network, one):
        return
    for count in _candidates(network):
        if count != given and _runs(network, one[:, :1].repeat(1, count, 1, 1)):
            raise BadImages(
                f"images has {given} channel{'s' * (given > 1)}, but the model takes {count}. "
                f"{_remedy(tuple(images.shape), count)}"
            ) from error


def _runs(network: nn.Module, images: Tensor) -> bool:
    try:
        with torch.inference_mode(False), torch.no_grad():
            network(images)
    except Exception:
        return False
    return True


def _candidates(network: nn.Module) -> list[int]:
    """Return the numbers of channels to try: those of the first convolution, of color and of gray images."""
    declared = (getattr(module, "in_channels", None) for module in network.modules())
    first = [count for count in declared if isinstance(count, int)][:1]
    return list(dict.fromkeys([*first, 3, 1, 4]))


def _remedy(shape: tuple[int, ...], count: int) -> str:
    given = shape[1]
    if shape[3] == count:
        return "The last axis looks like the channels: give images.permute(0, 3, 1, 2)."
    if given == 1:
        return f"If these are gray images, repeat the channel before normalization: images.expand(-1, {count}, -1, -1)."
    if (given, count) == (4, 3):
        return "If the fourth channel is transparency, drop it: images[:, :3]."
    if count == 1:
        return "If these are color images, give their mean before normalization: images.mean(1, keepdim=True)."
    return f"Give images [N, {count}, H, W], normalized as in training."
