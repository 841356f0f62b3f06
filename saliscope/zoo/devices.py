"""The device that networks run on: its choice by name, and a comparison with the CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import explainers
from saliscope.errors import Refused
from saliscope.zoo.model import Model

AUTO = "auto"
ACCELERATORS = ("cuda", "xpu", "mps")
"""Kinds of accelerators; "auto" is the first that is available, else the CPU."""
TOLERANCE = 1e-3
"""Largest difference of a map from the CPU's, as a share of its maximum."""


def available() -> list[str]:
    """Return the names of the devices of this machine, the CPU first."""
    found = ["cpu"]
    for kind in ACCELERATORS:
        backend: Any = getattr(torch, kind, None)
        if backend is not None and backend.is_available():
            found += [f"{kind}:{index}" for index in range(backend.device_count())]
    return found


def full_name(device: torch.device) -> str:
    """Return the name of a device as in `available`: cuda is cuda:0."""
    return device.type if device.type == "cpu" else f"{device.type}:{device.index or 0}"


def choose(name: str) -> torch.device:
    """Return the device with this name: auto, cpu, cuda, cuda:1, mps or xpu.

    Errors   Refused with the available devices if it is not among them
    """
    known = available()
    if name == AUTO:
        return torch.device((known[1] if len(known) > 1 else known[0]).partition(":")[0])
    try:
        device = torch.device(name)
    except RuntimeError:  # not a kind of device
        device = None
    if device is None or full_name(device) not in known:
        raise Refused(f"Device {name!r} is not available. Available: {', '.join(known)}. Use one of them, or auto.")
    return device


def copies_asynchronously(device: torch.device) -> bool:
    """Return whether a device copies tensors from pinned memory while the CPU continues."""
    return device.type in ("cuda", "xpu")


def move(images: Tensor, device: torch.device) -> Tensor:
    """Return images on a device. The CPU waits for the copy only if the device cannot copy asynchronously."""
    if not copies_asynchronously(device):
        return images.to(device)
    return (images if images.is_pinned() else images.pin_memory()).to(device, non_blocking=True)


def compare(model: Model, device: torch.device) -> str:
    """Move a network to a device, and return a warning if a Grad-CAM of noise differs from the CPU's, else "".

    Networks that Grad-CAM does not explain are not compared. Grad-CAM may also fail on the device only, because it
    lacks an operation of the network.
    """
    if device.type == "cpu":
        return ""
    images = torch.randn((1, model.channels, *model.size), generator=torch.Generator().manual_seed(0))

    def map_on(place: torch.device) -> Tensor:
        return explainers.grad_cam(model.network.to(place), images.to(place), 0, relu=False).cpu()

    try:
        expected = map_on(torch.device("cpu"))
    except explainers.ExplainerError:
        return ""
    try:
        found = map_on(device)
    except (explainers.ExplainerError, RuntimeError, TypeError) as error:
        why = str(error).partition("\n")[0].rstrip(".")
        return f"On {device}, Grad-CAM fails, although it works on the CPU: {why}. Use --device cpu."
    share = float((found - expected).abs().max() / expected.abs().max().clamp(min=torch.finfo(expected.dtype).tiny))
    if share <= TOLERANCE:  # NaN is a difference too
        return ""
    return (
        f"On {device}, a Grad-CAM differs from the CPU's by {share:.2g} of its maximum, so maps may be wrong. Use "
        "--device cpu, or on an NVIDIA GPU switch off TF32 (torch.backends.cudnn.allow_tf32 = False)."
    )
