"""The part of an image that preserves the score best, found by gradient ascent on a mask."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import Unpack

from explainers.call.run import Run, open_run
from explainers.call.scores import at_least_float32
from explainers.findings import is_recording, note_finding
from explainers.keywords import Cost
from explainers.options import Baseline, Choice, Range, Seed
from explainers.perturbation.baselines import NAMES, levels_of
from explainers.perturbation.control_maps import center_map, edge_map, random_map
from explainers.registry import method
from explainers.rules.operations import vjp
from explainers.targets import TargetLike

# As in the authors' code at 224 px: parameters 7 px apart, discs with a radius of 21 px, softmax temperature 1/20.
_SHARE, _REACH, _INVERSE_TEMPERATURE = 32, 3, 20.0
# Weight of the area term relative to a score gradient of length 1 (sum of magnitudes), and its growth over all steps.
_WEIGHT, _GROWTH = 4.0, 16.0
# Learning rate: maximum total change of a parameter, relative to its mean share of such a gradient.
_RATE, _MOMENTUM = 0.5, 0.9
# The search starts at the best of the discs at as many positions along each side.
_SIDE = 5


@method(
    family="perturbation",
    returns="heat",
    title="Extremal perturbation",
    gradients=True,
    paper="Fong et al. 2019, arXiv:1910.08485",
    scale_free="Values are a mask between 0 and 1.",
    signed=False,
    videos=False,
)
def extremal_perturbation(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    area: Annotated[float, Range(0.01, 0.9, 0.01, help="fraction of the image to keep")] = 0.1,
    steps: Annotated[int, Range(1, 2000, help="gradient steps; one forward and backward pass each")] = 150,
    baseline: Annotated[Baseline, Choice(*NAMES, help="what replaces the rest")] = "blur",
    seed: Seed = 0,
    **cost: Unpack[Cost],
) -> Tensor:
    """Extremal perturbation: the smooth mask of a given area that keeps the score highest.

        max_m  y(fade(x, m)) - λ ‖sort(m) - area template‖²,  λ growing;  fade: from the baseline at m = 0 to x at 1

    The mask is a soft maximum of discs, so that its parts are compact. With "blur", values between 0 and 1 are weaker
    blurs; all other baselines are blended with the image. The gradient of the score is normalized to length 1, so that
    the scale of the score has no effect. The search starts at the disc of that area with the highest score, on a 5 x 5
    grid, and returns that disc if it finds nothing better. The authors start with the whole image and mirror it in
    every other step.

    `forward` and `through` are as in `explain`.

    Returns  (n, h, w) at the input's resolution, in [0, 1]: 1 for pixels to keep; all 0 if the score has no gradient. A
             finding reports if the kept part does not score higher than the baseline, or than an equally large part at
             the center, at edges or at random
    Errors   BadTarget, BadOption
    Source   Fong et al. 2019, section 3, arXiv:1910.08485: area by the sorted mask, smooth masks by max-convolution

    Example
        >>> extremal_perturbation(model, images, 281, steps=5).shape
        torch.Size([1, 224, 224])
    """
    with open_run(model, images, target, many=True, cost=cost) as run:
        x, full = run.images, run.scoring.score_inputs()
        kept = KeptParts(run, levels_of(x, baseline, seed), area)
        height, width = x.shape[-2:]
        step = max(1, round(min(height, width) / _SHARE))
        discs = _discs(height, width, step).to(at_least_float32(x[:0]))
        margin = _REACH * step
        size = discs[0].numel()
        template = torch.arange(size, device=x.device) >= size - kept.count
        starts, parameters = kept.starts(step, _REACH * step / 2)
        highest = torch.full_like(full, -torch.inf)
        chosen, has_gradient = torch.zeros_like(full, dtype=torch.long), torch.zeros_like(full, dtype=torch.bool)
        at_once = max(1, run.loop.batch_size or len(x) * run.loop.whole(run.loop.rows(passes=2)))
        mask, done, last = parameters[chosen], 0, len(starts) + steps
        velocity = torch.zeros_like(mask)
        found: list[Tensor] = []

        def ascend(at: int) -> None:
            m, backward = vjp(lambda p: _smooth_masks(p, discs, step), mask)
            inner = m[:, margin:-margin, margin:-margin]
            chunks = torch.arange(len(x)).split(at_once)
            gradient = torch.cat([kept.gradient(inner[rows], rows.tolist()) for rows in chunks])
            score_step, area_step = (
                backward(functional.pad(gradient, [margin] * 4)),
                backward(_area_gradient(m, template)),
            )
            length = score_step.abs().sum((1, 2), keepdim=True)
            has_gradient.logical_or_(length.flatten() != 0)  # also true for NaN, which propagates
            weight = _WEIGHT * _GROWTH ** (at / steps)
            ascent = torch.where(length != 0, score_step / length, 0) - weight * area_step
            velocity.mul_(_MOMENTUM).add_((1 - _MOMENTUM) * ascent)
            mask.add_(_RATE * mask[0].numel() / steps * velocity).clamp_(0, 1)

        def start(at: int) -> None:
            scores = kept.scores(starts[at].expand(len(x), -1, -1))
            better = torch.ones_like(has_gradient) if at == 0 else scores > highest
            highest[better], chosen[better] = scores[better], at
            mask.copy_(parameters[chosen])

        def work(chunk: range) -> None:
            nonlocal done
            for at in chunk:
                if at < len(starts):
                    start(at)
                elif at < last:
                    ascend(at - len(starts))
                else:
                    found.append(kept.better(heat(), starts[chosen]))
                done = at + 1

        def heat() -> Tensor:
            if found:
                return found[0]
            if done <= len(starts):
                return starts[chosen]
            smooth = _smooth_masks(mask, discs, step)[:, margin:-margin, margin:-margin]
            return torch.where(has_gradient[:, None, None], smooth, 0)

        run.loop.run(last + 1, 1, work, heat)
        blank = torch.full_like(has_gradient, done > len(starts)) & ~has_gradient
        for index in blank.nonzero().flatten().tolist():
            message = "The score has no gradient at any mask tried, so the method cannot choose between masks."
            note_finding("no_gradient", message, image=index, anywhere=True)
        if is_recording() and run.loop.left > 5 * len(x) * run.loop.seconds_per_row:
            kept.note_failures(heat(), blank)
        return heat()


def _discs(height: int, width: int, step: int) -> Tensor:
    """Return weights of the parameters around each pixel, [K, H, W]: exp(-2 max(0, distance / radius - 1/2)²).

    The image gets a margin of one disc, because a disc clipped at the border would have a smaller area penalty.
    """
    reach = _REACH * step
    y, x = torch.arange(height + 2 * reach)[:, None], torch.arange(width + 2 * reach)[None]
    offsets = torch.arange(-_REACH - 1, _REACH + 2)[:, None, None]
    # Parameters are at the centers of their cells.
    dy = (y // step + offsets) * step + (step - 1) / 2 - y
    dx = (x // step + offsets) * step + (step - 1) / 2 - x
    distance = torch.sqrt(dy[:, None] ** 2 + dx**2).flatten(0, 1) / reach
    return torch.exp(-2 * (distance - 0.5).clamp(min=0) ** 2)


def _smooth_masks(parameters: Tensor, discs: Tensor, step: int) -> Tensor:
    """Return masks of image and margin: at each pixel the soft maximum of the weighted parameters around it."""
    side = math.isqrt(len(discs))
    padded = functional.pad(parameters, [_REACH] * 4)
    near = functional.unfold(padded[:, None], side, padding=side // 2)
    near = near.view(len(padded), len(discs), *padded.shape[1:])
    near = near.repeat_interleave(step, 2).repeat_interleave(step, 3)[..., : discs.shape[1], : discs.shape[2]]
    weighted = near * discs
    return (weighted * torch.softmax(_INVERSE_TEMPERATURE * weighted, dim=1)).sum(1)


def _area_gradient(masks: Tensor, template: Tensor) -> Tensor:
    """Return half the gradient of mean((sort(mask) - template)²): each value minus the template at its rank."""
    flat = masks.flatten(1)
    ranks = flat.argsort(dim=1, stable=True).argsort(dim=1)
    return ((flat - template[ranks].to(flat)) / flat.shape[1]).view_as(masks)


@dataclass(frozen=True, eq=False)
class KeptParts:
    """The images of a run, faded by masks. `levels` [L, N, C, H, W] are degrees of the baseline, from 0 to 1.

    `area` is the fraction of the image to keep.
    """

    run: Run
    levels: Tensor
    area: float

    @property
    def count(self) -> int:
        """Number of pixels to keep."""
        return round(self.area * self.levels[0, 0, 0].numel())

    def fade(self, masks: Tensor, indices: list[int]) -> tuple[Tensor, Tensor]:
        """Return images [B, C, H, W] faded by masks [B, H, W], and the derivative of each pixel by its mask."""
        top = len(self.levels) - 1
        lower = (masks * top).floor().clamp(0, top - 1)
        rows = self.levels[:, indices]
        at = lower.long()[None, :, None].expand(1, *rows.shape[1:])
        low, high = rows.gather(0, at)[0], rows.gather(0, at + 1)[0]
        return torch.lerp(low, high, (masks * top - lower)[:, None].to(low)), top * at_least_float32(high - low)

    def gradient(self, masks: Tensor, indices: list[int]) -> Tensor:
        """Return ∂y / ∂mask, [B, H, W]."""
        faded, slopes = self.fade(masks, indices)
        return (self.run.backward.gradient(faded, indices) * slopes).sum(1)

    def scores(self, masks: Tensor) -> Tensor:
        """Return the scores [N] of all images, faded by masks [N, H, W]."""
        rows = list(range(len(masks)))
        return self.run.scoring.values(self.fade(masks, rows)[0], rows)

    def highest(self, maps: Tensor) -> Tensor:
        """Return masks that keep the pixels with the highest values of maps [N, H, W], all of the same area."""
        flat = maps.flatten(1)
        highest = flat.argsort(dim=1, descending=True, stable=True)[:, : max(1, self.count)]
        return torch.zeros_like(flat).scatter_(1, highest, 1.0).view_as(maps)

    def better(self, masks: Tensor, others: Tensor) -> Tensor:
        """Return, for each image, the mask whose part scores higher; a mask without values is kept."""
        wins = (self.scores(self.highest(others)) > self.scores(self.highest(masks))) & masks.flatten(1).any(1)
        return torch.where(wins[:, None, None], others, masks)

    def starts(self, step: int, reach: float) -> tuple[Tensor, Tensor]:
        """Return discs [S, H, W] of the kept area at even positions, and their parameters [S, rows, columns].

        Parameters are `step` pixels apart, and the mask that they define extends `reach` pixels beyond them.
        """
        images = at_least_float32(self.run.images)
        sides = images.shape[-2:]
        counts = [min(_SIDE, side) for side in sides]
        y, x = ((torch.arange(n, dtype=torch.float64) + 0.5) * side / n for n, side in zip(counts, sides, strict=True))
        centers = torch.cartesian_prod(y, x)[:, :, None]

        def distances(step: int, rows: int, columns: int) -> Tensor:
            """Return the distances in pixels of the centers of cells, `step` pixels wide, from each position."""
            down = (torch.arange(rows, dtype=torch.float64) + 0.5) * step - centers[:, 0]
            right = (torch.arange(columns, dtype=torch.float64) + 0.5) * step - centers[:, 1]
            return torch.sqrt(down[:, :, None] ** 2 + right[:, None] ** 2).to(images)

        pixels, cells = distances(1, *sides), distances(step, *(-(-side // step) for side in sides))
        discs = torch.cat([self.highest(-each[None]) for each in pixels])  # sorted one by one, to save memory
        radius = torch.maximum((pixels * discs).amax((1, 2)) - reach, cells.amin((1, 2)))
        return discs, (cells <= radius[:, None, None]).to(cells)

    def note_failures(self, masks: Tensor, blank: Tensor) -> None:
        """Note images whose kept part does not score higher than the baseline and equally large other parts."""
        images = self.run.images
        kept, empty = self.scores(self.highest(masks)), self.scores(torch.zeros_like(masks))
        controls = {"at the center": center_map(images), "at edges": edge_map(images), "at random": random_map(images)}
        others = {where: self.scores(self.highest(map)).tolist() for where, map in controls.items()}
        for index in (~blank).nonzero().flatten().tolist():
            score, rest = float(kept[index]), float(empty[index])
            where, best = max(((name, values[index]) for name, values in others.items()), key=lambda pair: pair[1])
            if score > max(rest, best) or not math.isfinite(score):
                continue
            facts: dict[str, Any] = {"score": score, "empty": rest}
            if score <= rest:
                reason = f"not more than the baseline alone ({rest + 0.0:.3g})"
            else:
                reason, facts = f"not more than an equally large part {where} ({best:.3g})", {**facts, "other": best}
            note_finding(
                "search_failed",
                f"The search failed: the kept part scores {score:.3g}, {reason}. Try another baseline, such as 0, "
                "more steps, or another area.",
                image=index,
                **facts,
            )
