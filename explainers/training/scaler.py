"""The scale of gradients in mixed precision: `torch.amp.GradScaler` multiplies the loss, and so every gradient.

The optimizer divides by the scale after the backward pass, so hooks receive scaled gradients. A tensor does not show
whether its loss was scaled; the scaler is therefore an option, and it is required if the process has one in use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler

from explainers.errors import BadOption, WrongType
from explainers.hooks.live import LiveInstances

Scaler = GradScaler | Literal[False] | None

_scalers = LiveInstances(GradScaler)


def scale_of(scaler: Scaler, function: str) -> Callable[[Tensor], Tensor | float]:
    """Return a function that returns the scale of a gradient, which it calls in the backward pass.

    Errors   WrongType if `scaler` is not a GradScaler, False or None; BadOption for None if a scaler is in use, also
             raised by the returned function
    """
    if scaler is not None and scaler is not False and not isinstance(scaler, GradScaler):
        raise WrongType(f"Invalid scaler={scaler!r}. Pass a torch.amp.GradScaler, or False if the loss is not scaled.")

    def check() -> None:
        # A scaler that has not scaled any loss has no tensor for its scale yet.
        if scaler is None and any(each.is_enabled() and each._scale is not None for each in _scalers.get()):
            raise BadOption(
                f"The process uses a torch.amp.GradScaler, so gradients may be scaled. Call {function}(..., "
                "scaler=scaler) to use their unscaled values, or scaler=False if this loss is not scaled."
            )

    def scale(gradient: Tensor) -> Tensor | float:
        check()
        if not isinstance(scaler, GradScaler) or not scaler.is_enabled():
            return 1.0
        # `get_scale` would wait for the device.
        return scaler.scale(torch.ones((), device=gradient.device))

    check()
    return scale
