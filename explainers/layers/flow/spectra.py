"""Fourier transforms: entries of a spectrum are frequencies, and the inverse transform restores their positions.

A filter multiplies a spectrum. It keeps positions unless its phase shifts the image, as a phase ramp does; the complex
conjugate mirrors the image.
"""

from __future__ import annotations

import torch
from torch import Tensor

from explainers.layers.flow.axes import SPATIAL, Axes, Axis, full_axis, lost_axis
from explainers.layers.flow.operation import Operation, Reads, Result, alike, dims_of
from explainers.layers.flow.positions import Positions, even

SPECTRUM, FILTER = "a Fourier transform", "a Fourier filter that moves the image"


def transform(operation: Operation) -> Result:
    """Fourier transforms, after which entries are frequencies; the inverse restores the positions."""
    dims = dims_of(operation.argument(1, "dim"), len(operation.first))
    inverse = operation.name.endswith("c2r") or (
        operation.name.endswith("c2c") and not operation.argument(3, "forward", True)
    )
    axes = list(operation.first)
    for d in dims:
        size = operation.outputs[0].shape[d]
        if axes[d].kinds & SPATIAL and len(axes[d].factors) == 1:
            (factor,) = axes[d].factors
            known = factor.positions or even(factor.steps)
            moved = known.restored(size) if inverse else known.transformed(SPECTRUM, size)
            axes[d] = full_axis(factor.kind, size, moved)
        elif axes[d].kinds & SPATIAL:
            axes[d] = lost_axis(axes[d], SPECTRUM)
    return alike(operation, tuple(axes), Reads.ALL)


def conjugate(operation: Operation) -> Result:
    """The conjugate of a spectrum is that of the mirrored image."""
    axes = [_moved(axis) if _before(axis) else axis for axis in operation.first]
    return alike(operation, tuple(axes))


def filtered(operation: Operation, axes: Axes) -> Axes:
    """Return the axes of a product with a spectrum, without the positions before it if the other factor moves them."""
    if len(operation.inputs) != 2 or not any(map(_before, axes)):
        return axes
    known, count, result = operation.axes, len(axes), list(axes)
    factor = next((x for x, own in zip(operation.inputs, known, strict=True) if own is None), None)
    for d, axis in enumerate(axes):
        if before := _before(axis):
            if factor is None:
                moves = all(each.is_complex() for each in operation.inputs)  # the product of two spectra of the image
            else:
                at = d - count + factor.ndim
                moves = at >= 0 and factor.shape[at] > 1 and _shifts(factor, at, len(before.at))
            result[d] = _moved(axis) if moves else axis
    return tuple(result)


def _before(axis: Axis) -> Positions | None:
    """Return the positions that the inverse transform would restore."""
    known = axis.factors[0].positions if len(axis.factors) == 1 else None
    return known.before if known is not None and known.lost == SPECTRUM else None


def _moved(axis: Axis) -> Axis:
    (factor,) = axis.factors
    known = factor.positions and factor.positions._replace(lost=FILTER, before=None)
    return axis._replace(factors=(factor._replace(positions=known),))


def _shifts(factor: Tensor, dim: int, count: int) -> bool:
    """Return whether most of the energy of the filter's impulse response is far from its center."""
    spectrum = factor.detach().to("cpu", torch.complex128).movedim(dim, -1)
    whole = spectrum.shape[-1] == count
    response = torch.fft.ifft(spectrum) if whole else torch.fft.irfft(spectrum, n=count)
    energy = response.abs().square().reshape(-1, count).sum(0)
    near = sum(energy.roll(k) for k in (-1, 0, 1))
    peak = int(near.argmax())
    return min(peak, count - peak) > 1 and float(near[peak]) > 2 * float(near[0])
