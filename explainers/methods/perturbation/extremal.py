"""The part of a picture that alone keeps the score highest, found by following the gradient of a mask."""

from __future__ import annotations

import math
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional

from explainers.backward.vjp import vjp
from explainers.findings import is_recording, note_finding
from explainers.options import Baseline, Choice, Precision, Range, Seed
from explainers.passes.loop import Loop, Progress
from explainers.passes.run import Run, at_least_float32, open_run
from explainers.perturbation.baselines import NAMES, baseline_of
from explainers.perturbation.segments import blend
from explainers.registry import method
from explainers.targets import TargetLike

# As in the authors' code at 224 px: parameters 7 px apart, each seen over 21 px, softmax of temperature 1/20.
_SHARE, _REACH, _INVERSE_TEMPERATURE = 32, 3, 20.0
# The area's weight beside a score whose gradient has length 1 (sum of magnitudes), at the first step and at the last.
_WEIGHT, _GROWTH = 4.0, 16.0
# How far all steps together may carry a parameter, in parameters' shares of such a gradient.
_RATE, _MOMENTUM = 0.5, 0.9


@method(
    family="perturbation",
    returns="heat",
    title="Extremal perturbation",
    paper="Fong et al. 2019, arXiv:1910.08485",
    scale_free="Values are a mask between 0 and 1.",
    signed=False,
)
def extremal_perturbation(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    area: Annotated[float, Range(0.01, 0.9, 0.01, help="share of the picture that is kept")] = 0.1,
    steps: Annotated[int, Range(1, 2000, help="steps of the search; one forward and backward pass each")] = 150,
    baseline: Annotated[Baseline, Choice(*NAMES, help="what the rest becomes; empty: zeros")] = "blur",
    seed: Seed = 0,
    batch_size: int | None = None,
    precision: Precision = "float32",
    progress: Progress | None = None,
    budget: float | None = None,
) -> Tensor:
    """Extremal perturbation: the smooth mask of a given area that keeps the score highest.

    The mask is a soft maximum of discs, so that its parts are round and not scattered. The search climbs the score less
    a growing penalty on the distance of the sorted mask from one with the area wanted. The score's gradient is taken at
    unit length, so that its scale makes no difference; the rest fades to one baseline, where the authors blur by
    degrees and mirror every other step.

    Returns  (n, h, w) at the input's resolution, in [0, 1]: 1 where the picture is kept; 0 everywhere where the score
             has no gradient. A finding says where the part that is kept scores no more than the baseline alone
    Errors   BadTarget, BadOption
    Source   Fong et al. 2019, section 3, arXiv:1910.08485: area by the sorted mask, smooth masks by max-convolution
    """
    with open_run(model, images, target, many=True, precision=precision) as run:
        x, _ = run.images, run.score_inputs()
        cover = baseline_of(x, baseline, seed)
        height, width = x.shape[-2:]
        step = max(1, round(min(height, width) / _SHARE))
        discs = _discs(height, width, step).to(at_least_float32(x[:0]))
        margin = _REACH * step
        size = discs[0].numel()
        wanted = torch.arange(size, device=x.device) >= size - round(area * height * width)
        mask = torch.ones(len(x), -(-height // step), -(-width // step)).to(discs)
        velocity, has_gradient = torch.zeros_like(mask), torch.zeros(len(x), dtype=torch.bool, device=x.device)
        loop = Loop(batch_size, progress, budget)

        def ascend(at: range) -> None:
            m, backward = vjp(lambda p: _smooth(p, discs, step), mask)
            seen = m[:, margin:-margin, margin:-margin]
            some = torch.arange(len(x)).split(loop.rows(x))
            uphill = torch.cat([_uphill(run, cover, seen, pictures.tolist()) for pictures in some])
            rise, fall = backward(functional.pad(uphill, [margin] * 4)), backward(_from_area(m, wanted))
            length = rise.abs().sum((1, 2), keepdim=True)
            has_gradient.logical_or_(length.flatten() != 0)  # nor is a gradient that is no number passed over
            weight = _WEIGHT * _GROWTH ** (at.start / steps)
            ascent = torch.where(length != 0, rise / length, 0) - weight * fall
            velocity.mul_(_MOMENTUM).add_((1 - _MOMENTUM) * ascent)
            mask.add_(_RATE * mask[0].numel() / steps * velocity).clamp_(0, 1)

        def heat() -> Tensor:
            found = _smooth(mask, discs, step)[:, margin:-margin, margin:-margin]
            return torch.where(has_gradient[:, None, None], found, 0)

        loop.run(steps, 1, ascend, heat)
        for picture in (~has_gradient).nonzero().flatten().tolist():
            sentence = "The score has no gradient at any mask tried, so none is better than another."
            note_finding("no_gradient", sentence, picture=picture)
        if is_recording():
            _tell_failures(run, cover, heat(), has_gradient)
        return heat()


def _tell_failures(run: Run, cover: Tensor, masks: Tensor, has_gradient: Tensor) -> None:
    """A finding for each picture whose kept part scores no more than the cover alone: the search went astray."""
    everyone = range(len(masks))
    kept = torch.cat([blend(run.images[n], cover[n], masks[n : n + 1]) for n in everyone])
    pairs = zip(run.values(kept, everyone).tolist(), run.values(cover, everyone).tolist(), strict=True)
    for picture, (score, bare) in enumerate(pairs):
        if bool(has_gradient[picture]) and score <= bare:
            note_finding(
                "search_failed",
                f"The part that is kept scores {score:.3g}, no more than the cover alone ({bare + 0.0:.3g}): the "
                "search went astray. Try another baseline, such as 0, or more steps.",
                picture=picture,
            )


def _uphill(run: Run, cover: Tensor, masks: Tensor, pictures: list[int]) -> Tensor:
    """d score / d mask of pictures that fade into their cover."""
    x = run.images
    kept = torch.stack([blend(x[n], cover[n], masks[n : n + 1])[0] for n in pictures])
    return (run.gradient(kept, pictures) * at_least_float32(x[pictures] - cover[pictures])).sum(1)


def _discs(height: int, width: int, step: int) -> Tensor:
    """How strongly each pixel sees the parameters around it, [K, H, W]: exp(-2 max(0, distance / reach - 1/2)^2).

    There is a margin as wide as a disc around the picture: a disc at the border is not smaller than others, else the
    area would press less on it.
    """
    reach = _REACH * step
    y, x = torch.arange(height + 2 * reach)[:, None], torch.arange(width + 2 * reach)[None]
    around = range(-_REACH - 1, _REACH + 2)
    found = []
    for down in around:
        for right in around:
            # Parameters sit in the middle of their cells.
            dy = (y // step + down) * step + (step - 1) / 2 - y
            dx = (x // step + right) * step + (step - 1) / 2 - x
            distance = torch.sqrt(dy**2 + dx**2) / reach
            found.append(torch.exp(-2 * (distance - 0.5).clamp(min=0) ** 2))
    return torch.stack(found)


def _smooth(parameters: Tensor, discs: Tensor, step: int) -> Tensor:
    """Masks of picture and margin: the soft maximum of what a pixel sees of the parameters around it."""
    side = math.isqrt(len(discs))
    wide = functional.pad(parameters, [_REACH] * 4)
    near = functional.unfold(wide[:, None], side, padding=side // 2)
    near = near.view(len(wide), len(discs), *wide.shape[1:])
    near = near.repeat_interleave(step, 2).repeat_interleave(step, 3)[..., : discs.shape[1], : discs.shape[2]]
    seen = near * discs
    return (seen * torch.softmax(_INVERSE_TEMPERATURE * seen, dim=1)).sum(1)


def _from_area(masks: Tensor, wanted: Tensor) -> Tensor:
    """Half the gradient of mean((sorted mask - wanted)^2): each value less what its rank asks for."""
    flat = masks.flatten(1)
    ranks = flat.argsort(dim=1, stable=True).argsort(dim=1)
    return ((flat - wanted[ranks].to(flat)) / flat.shape[1]).view_as(masks)
