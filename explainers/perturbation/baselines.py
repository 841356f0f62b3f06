"""Baselines: reference inputs that represent missing content, for a whole image or its masked parts."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from explainers.call.current import packing_of
from explainers.errors import BadOption, kind_of, shorten, wrong_type
from explainers.options import Baseline
from explainers.perturbation.rng import PerImageGenerators

NAMES = ("zeros", "blur", "mean", "noise")


def extremes(images: Tensor) -> tuple[Tensor, Tensor]:
    """Return each image's minimum and range (maximum − minimum), to scale noise and baselines.

    Both are [N, 1, 1, 1], or in the shape of the images if these are several inputs, each with its own extremes.
    """
    low = _of_each_input(images, lambda own: own.amin(tuple(range(1, own.ndim)), keepdim=True))
    return low, _of_each_input(images, lambda own: own.amax(tuple(range(1, own.ndim)), keepdim=True)) - low


def baseline_of(images: Tensor, baseline: Baseline, seed: int = 0) -> Tensor:
    """Create the baseline of each image, in the shape of the images.

    `baseline` is "zeros" (in the model's units), a number, a tensor that broadcasts to the images, "blur" (the image
    after a Gaussian blur with σ of a sixteenth of its shorter side; of videos and volumes also along their third axis,
    with σ of a sixteenth of its length), "mean" (each channel's mean) or "noise" (uniform from the image's minimum to
    its maximum).

    Errors   BadOption for an unknown name, a tensor of another shape or device, or values that are not finite and real

    Example
        >>> baseline_of(torch.tensor([[[[1.0, 2.0], [3.0, 6.0]]]]), "mean")
        tensor([[[[3., 3.],
                  [3., 3.]]]])
    """
    if not isinstance(images, Tensor):
        raise wrong_type("images", images, "a tensor [N, C, H, W]")
    if isinstance(baseline, Tensor):
        refuse_values("baseline", baseline, images)
        try:
            return baseline.detach().to(images).expand_as(images).clone()
        except RuntimeError as reason:
            raise BadOption(
                f"baseline has shape {tuple(baseline.shape)}, which does not broadcast to images {tuple(images.shape)}."
                f" Give {tuple(images.shape[1:])}, or one value per channel: "
                f"{(images.shape[1], *[1] * (images.ndim - 2))}."
            ) from reason
    if isinstance(baseline, (int, float)) and not isinstance(baseline, bool):
        if not math.isfinite(float(torch.tensor(float(baseline), dtype=images.dtype))):
            raise BadOption(f"baseline={shorten(baseline)} is not finite in {images.dtype}. Give a finite number.")
        return torch.full_like(images, float(baseline))
    if not isinstance(baseline, str):
        raise BadOption(
            f"baseline is {kind_of(baseline)}. Give a number, a tensor, or one of "
            f"{', '.join(NAMES)}. Convert an array with torch.as_tensor(array)."
        )
    if baseline == "zeros":
        return torch.zeros_like(images)
    if baseline == "mean":
        return _of_each_input(images, lambda own: own.mean(tuple(range(2, own.ndim)), True)).expand_as(images).clone()
    if baseline == "blur":
        return _of_each_input(images, _blur)
    if baseline == "noise":
        noise = torch.rand(images.shape[1:], generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(
            images
        )
        low, span = extremes(images)
        return low + span * noise
    raise BadOption(
        f"baseline={shorten(baseline)} is not valid. Give a number, a tensor, or one of {', '.join(NAMES)}."
    )


def noise_baselines(images: Tensor, seed: int) -> Callable[[int, int], Tensor]:
    """Return a function that samples an image's next baselines "noise": (image index, count) -> [count, C, H, W]."""
    generators, (low, span) = PerImageGenerators(len(images), seed, images.device), extremes(images)

    def sample(index: int, count: int) -> Tensor:
        return low[index] + span[index] * generators.uniform_noise(index, count, *images.shape[1:]).to(images)

    return sample


def levels_of(images: Tensor, baseline: Baseline, seed: int = 0, count: int = 8) -> Tensor:
    """Return degrees of a baseline, [L, N, C, H, W], from the baseline of each image to the image itself.

    "blur" has `count` degrees, with evenly spaced σ. All other baselines have none between themselves and the image.

    Errors   as `baseline_of`
    Source   Fong et al. 2019, appendix, arXiv:1910.08485
    """
    if isinstance(baseline, str) and baseline == "blur":
        return torch.stack([*(_blur(images, 1 - level / (count - 1)) for level in range(count - 1)), images])
    return torch.stack([baseline_of(images, baseline, seed), images])


def refuse_values(name: str, given: Tensor, images: Tensor) -> None:
    """Raise an error if the images cannot be blended with a tensor.

    Errors   BadOption
    """
    if given.dtype == torch.bool or given.is_complex():
        raise BadOption(
            f"{name} has dtype {given.dtype}. Give real numbers in the units of the images, as {images.dtype}."
        )
    if given.device != images.device:
        device = str(images.device)
        raise BadOption(f"{name} is on {given.device}, but the images are on {device}. Give {name}.to({device!r}).")
    wrong = ~given.to(images.dtype).isfinite()
    if bool(wrong.any()):
        where = tuple(wrong.nonzero()[0].tolist())
        raise BadOption(f"{name} contains {given[where].item()} at {where}. Give finite values.")


def _of_each_input(images: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the function's value for the images, or for each input of a network with several, in the same tensor."""
    packing = packing_of(images)
    return function(images) if packing is None else packing.map(function, images)


def _blur(images: Tensor, share: float = 1.0) -> Tensor:
    """Apply a Gaussian blur, σ a sixteenth of the shorter side (of a video's frames) times `share`, to each axis.

    Borders are replicated.
    """
    for axis in range(images.ndim - 1, 1, -1):
        side = min(images.shape[-2:]) if axis >= images.ndim - 2 else images.shape[axis]
        sigma = share * max(side / 16, 0.5)
        images = blur_axis(images, axis, sigma, min(int(3 * sigma + 0.5), side))
    return images.contiguous()


def blur_axis(values: Tensor, axis: int, sigma: float, radius: int) -> Tensor:
    """Apply a Gaussian blur along an axis, with replicated borders and a kernel that ends at `radius`."""
    offsets = torch.arange(-radius, radius + 1, dtype=torch.float64)
    kernel = torch.exp(-(offsets**2) / (2 * sigma**2))
    lines = values.movedim(axis, -1)
    padded = F.pad(lines.flatten(0, -2)[:, None], (radius, radius), mode="replicate")
    return F.conv1d(padded, (kernel / kernel.sum()).to(values)[None, None]).view(lines.shape).movedim(-1, axis)
