"""Images that an optimizer changes: by the Fourier coefficients of decorrelated colors, or only by their phases."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from explainers.errors import BadOption, shorten
from explainers.perturbation import threefry

_COLORS = ((0.26, 0.09, 0.02), (0.27, 0.00, -0.05), (0.27, -0.09, 0.03))
"""Square root of the covariance of the colors of ImageNet's training images, as in lucid (Olah et al. 2017)."""
_WORD = 32
_SMALLEST = 1e-4


@dataclass(frozen=True, eq=False)
class Pixels:
    """Images of a size, computed from parameters [N, C, H, W // 2 + 1, ...] with a gradient.

    The coefficients of a frequency are divided by it, so that all frequencies contribute alike (natural images have
    this spectrum). If `magnitude` [C, H, W // 2 + 1] is given, the parameters are phases (MaCo), else complex numbers.
    """

    size: tuple[int, int]
    channels: int
    decorrelate: bool
    magnitude: Tensor | None = None

    def start(self, images: int, seed: int, device: torch.device) -> Tensor:
        """Return random parameters; those of an image do not depend on the number of images."""
        shape = self.channels, self.size[0], self.size[1] // 2 + 1
        if self.magnitude is not None:
            phases = threefry.uniform(seed, 0, images, shape[0] * shape[1] * shape[2], device)
            return (2 * torch.pi * phases).view(images, *shape)
        count = 2 * shape[0] * shape[1] * shape[2]
        return 0.01 * threefry.normal(seed, 0, images, count, device).view(images, *shape, 2)

    def images(self, parameters: Tensor) -> Tensor:
        """Return images [N, C, H, W] with values between 0 and 1."""
        if self.magnitude is not None:
            spectrum = torch.polar(self.magnitude.to(parameters).expand_as(parameters), parameters)
        else:
            spectrum = torch.view_as_complex(parameters) * _spectrum_scale(self.size, parameters.device)
        values = torch.fft.irfft2(spectrum, s=self.size, norm="ortho")
        if self.decorrelate:
            values = torch.einsum("dc,nchw->ndhw", _colors(values.device).to(values), values)
        return values.sigmoid()


def magnitude_of(images: Tensor, decorrelate: bool) -> Tensor:
    """Return the mean magnitude of the Fourier coefficients of images [N, C, H, W] in [0, 1], [C, H, W // 2 + 1].

    It is that of the values before the sigmoid function and the colors of `Pixels`.
    """
    values = images.float().clamp(_SMALLEST, 1 - _SMALLEST).logit()
    if decorrelate:
        values = torch.einsum("cd,ndhw->nchw", torch.linalg.inv(_colors(images.device)), values)
    return torch.fft.rfft2(values, norm="ortho").abs().mean(0)


def natural_magnitude(size: tuple[int, int], channels: int, device: torch.device) -> Tensor:
    """Return a magnitude that is inversely proportional to the frequency, as in natural images, [C, H, W // 2 + 1]."""
    scale = _spectrum_scale(size, device)
    # With this factor, the values before the sigmoid function have a standard deviation of 1 in each channel.
    mean_square = (scale**2).mean()
    return (scale / mean_square.sqrt() / (0.6 if channels == 3 else 1.0)).expand(channels, -1, -1)


def _colors(device: torch.device) -> Tensor:
    matrix = torch.tensor(_COLORS, device=device, dtype=torch.float32)
    return matrix / matrix.norm(dim=0).max()


def _spectrum_scale(size: tuple[int, int], device: torch.device) -> Tensor:
    """Return 1 / frequency, [H, W // 2 + 1], limited by the lowest frequency, times the square root of the size."""
    rows = torch.fft.fftfreq(size[0], device=device)[:, None]
    columns = torch.fft.rfftfreq(size[1], device=device)[None]
    frequency = (rows**2 + columns**2).sqrt()
    return (size[0] * size[1]) ** 0.5 / frequency.clamp(min=1 / max(size)) / (4 * max(size))


@dataclass(frozen=True)
class Transform:
    """A random shift, rotation and zoom of each image in each step, so that an image does not depend on its pixels.

    `jitter` is the largest shift as a part of the side, `rotate` the largest angle in degrees, and `scale` the largest
    change of the size. 0 switches one off.
    """

    jitter: float = 0.06
    rotate: float = 8.0
    scale: float = 0.12

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not is_number or not 0 <= value < (1 if name == "scale" else float("inf")):
                raise BadOption(f"{name}={shorten(value)} is not valid. Give a number of at least 0; scale is below 1.")

    def __call__(self, images: Tensor, seed: int, step: int) -> Tensor:
        """Return the transformed images; those of an image and a step do not depend on the others."""
        # The step is in the upper half of the generator's key; step 0 has the start values.
        numbers = 2 * threefry.uniform(seed + (step + 1 << _WORD), 0, len(images), 4, images.device) - 1
        angle = numbers[:, 0] * self.rotate * torch.pi / 180
        zoom = 1 + self.scale * numbers[:, 1]
        ratio = images.shape[-2] / images.shape[-1]  # the grid is in units of the sides
        cosine, sine = angle.cos() / zoom, angle.sin() / zoom
        shifts = 2 * self.jitter * numbers[:, 2:]
        rows = [cosine, -sine * ratio, shifts[:, 0], sine / ratio, cosine, shifts[:, 1]]
        grid = F.affine_grid(torch.stack(rows, 1).view(-1, 2, 3).to(images), list(images.shape), align_corners=False)
        return F.grid_sample(images, grid, padding_mode="reflection", align_corners=False)
