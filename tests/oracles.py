"""method -> oracle: for every method of the library one independent way to the right answer.

Best first: a closed form by hand, an identity, a second slow and obvious implementation. None of them uses the library.
`test_oracles.py` runs the table and fails when a method of `explainers.METHODS` has no entry here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from nets import Cubic, Weighted, act_grad, curved, pictures, plain, residual, settle
from torch import Tensor, nn

CLASSES = [2, 0, 5]


@dataclass(frozen=True)
class Oracle:
    """`truth` says where the expected values come from; `bites` proves that the case can tell right from wrong."""

    truth: str
    net: Callable[[], nn.Module]
    expected: Callable[[nn.Module, Tensor, list[int]], Tensor]
    images: Callable[[], Tensor] = pictures
    classes: list[int] = field(default_factory=lambda: list(CLASSES))
    layer: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    rtol: float = 1e-9
    atol: float = 1e-11
    bites: Callable[[Tensor], bool] = lambda expected: bool((expected > 0).any() and (expected < 0).any())


def _cut(expected: Tensor) -> bool:
    """The final ReLU had something to do."""
    return bool((expected == 0).any() and (expected > 0).any())


def _zhou(net: nn.Module, x: Tensor, classes: list[int]) -> Tensor:
    a = net[:4](x).detach()
    cam = torch.einsum("nk,nkhw->nhw", net.head.weight[classes], a)
    return (cam / a[0, 0].numel()).relu().detach()


def _plus_plus(net: nn.Module, x: Tensor, classes: list[int]) -> Tensor:
    """Equation 19, one picture, channel and cell at a time."""
    a, g, _ = act_grad(net, net.act2, x, classes)
    weights = torch.zeros_like(a[:, :, 0, 0])
    for n in range(a.shape[0]):
        for k in range(a.shape[1]):
            total = a[n, k].sum()
            for i in range(a.shape[2]):
                for j in range(a.shape[3]):
                    d = g[n, k, i, j]
                    denominator = 2 * d**2 + total * d**3
                    if denominator != 0:
                        weights[n, k] += d**2 / denominator * max(d, 0)
    return torch.einsum("nk,nkhw->nhw", weights, a).relu()


def _hires(net: nn.Module, x: Tensor, classes: list[int]) -> Tensor:
    a, g, _ = act_grad(net, net.act2, x, classes)
    return torch.stack([sum(a[n, k] * g[n, k] for k in range(a.shape[1])) for n in range(len(a))])


def _layer_cam(net: nn.Module, x: Tensor, classes: list[int]) -> Tensor:
    a, g, _ = act_grad(net, net.act2, x, classes)
    return sum(torch.where(g[:, k] > 0, g[:, k], 0) * a[:, k] for k in range(a.shape[1])).relu()


def _xgrad(net: nn.Module, x: Tensor, classes: list[int]) -> Tensor:
    a, g, _ = act_grad(net, net.act2, x, classes)
    weights = (g * a).sum((2, 3)) / a.sum((2, 3))
    return torch.einsum("nk,nkhw->nhw", weights, a).relu()


class _Silencer:
    """A forward hook that sets one channel of the output to zero, and keeps what it handed on."""

    def __init__(self) -> None:
        self.channel: int | None = None
        self.output: Tensor | None = None

    def __call__(self, module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        self.output = output.clone()
        if self.channel is not None:
            self.output[:, self.channel] = 0
        return self.output.clone()


def drops_by_hand(net: nn.Module, layer: nn.Module, x: Tensor, classes: list[int]) -> tuple[Tensor, Tensor]:
    """(score - score without channel k, activations), one picture and one channel at a time."""
    drops, kept = [], []
    for picture, c in zip(x, classes, strict=True):
        silencer = _Silencer()
        handle = layer.register_forward_hook(silencer)
        with torch.no_grad():
            full = net(picture[None])[0, c]
            kept.append(silencer.output[0])
            row = []
            for k in range(len(kept[-1])):
                silencer.channel = k
                row.append(full - net(picture[None])[0, c])
        handle.remove()
        drops.append(torch.stack(row))
    return torch.stack(drops), torch.stack(kept)


def _ablation(net: nn.Module, x: Tensor, classes: list[int]) -> Tensor:
    drops, a = drops_by_hand(net, net.layer2, x, classes)
    return torch.einsum("nk,nkhw->nhw", drops, a).relu()


def differences(net: nn.Module, x: Tensor, classes: list[int], step: float = 1e-5) -> Tensor:
    """d score / d pixel by central differences, one pixel at a time."""
    result = torch.zeros_like(x)
    with torch.no_grad():
        for n, c in enumerate(classes):
            moves = step * torch.eye(x[n].numel(), dtype=x.dtype).view(-1, *x[n].shape)
            up, down = net(x[n] + moves)[:, c], net(x[n] - moves)[:, c]
            result[n] = ((up - down) / (2 * step)).view(x[n].shape)
    return result


def rule_by_hand(net: nn.Module, x: Tensor, classes: list[int], gate: bool) -> Tensor:
    """Backwards through `plain`: only positive gradients pass a ReLU, and with `gate` only where it was open."""
    with torch.no_grad():
        z1 = net.conv1(x)
        z2 = net.conv2(z1.relu())
        g = (net.head.weight[classes] / z2[0, 0].numel())[:, :, None, None].expand_as(z2)
        g = g.clamp(min=0) * ((z2 > 0) if gate else 1)
        g = F.conv_transpose2d(g, net.conv2.weight, stride=2, padding=1, output_padding=1)
        g = g.clamp(min=0) * ((z1 > 0) if gate else 1)
        return F.conv_transpose2d(g, net.conv1.weight, padding=1)


def _guided_cam(net: nn.Module, x: Tensor, classes: list[int]) -> Tensor:
    cam = _zhou(net, x, classes)
    # Nearest from (6, 8) to (12, 16): every cell becomes a 2x2 square.
    return cam.repeat_interleave(2, 1).repeat_interleave(2, 2)[:, None] * rule_by_hand(net, x, classes, gate=True)


def _smooth(net: nn.Module, x: Tensor, classes: list[int]) -> Tensor:
    """Mean of the gradients at noisy pictures, every picture with its own generator."""
    rows = []
    for picture, c in zip(x, classes, strict=True):
        generator = torch.Generator().manual_seed(3)
        total = torch.zeros_like(picture)
        for _ in range(4):
            noise = torch.randn(picture.shape, generator=generator, dtype=picture.dtype)
            noisy = (picture + 0.2 * (picture.max() - picture.min()) * noise)[None].requires_grad_()
            total += torch.autograd.grad(net(noisy)[0, c], noisy)[0][0]
        rows.append(total / 4)
    return torch.stack(rows)


def occlusion_by_hand(
    net: nn.Module,
    x: Tensor,
    classes: list[int],
    window: tuple[int, int],
    stride: tuple[int, int],
    baseline: float = 0.0,
) -> Tensor:
    """Mean, over the windows that cover a pixel, of score lost / pixels covered; windows at the border are clipped."""
    n, _, height, width = x.shape
    total, covers = torch.zeros(n, height, width, dtype=x.dtype), torch.zeros(height, width, dtype=x.dtype)
    with torch.no_grad():
        full = net(x)
        for y in starts(height, window[0], stride[0]):
            for z in starts(width, window[1], stride[1]):
                hidden = x.clone()
                hidden[:, :, y : y + window[0], z : z + window[1]] = baseline
                area = hidden[0, 0, y : y + window[0], z : z + window[1]].numel()
                lost = (full - net(hidden))[range(n), classes]
                total[:, y : y + window[0], z : z + window[1]] += lost[:, None, None] / area
                covers[y : y + window[0], z : z + window[1]] += 1
    return total / covers


def starts(size: int, window: int, stride: int) -> list[int]:
    """Window starts: on by `stride` until a window reaches the border."""
    found = [0]
    while found[-1] + window < size:
        found.append(found[-1] + stride)
    return found


def _linear_occlusion(net: nn.Module, x: Tensor, classes: list[int]) -> Tensor:
    """A linear model loses exactly the window's w x; windows of 5x4 on 12x16, clipped to 2 rows at the lower border."""
    parts = (net.fc.weight[classes].view_as(x) * x).sum(1).detach()
    result = torch.zeros_like(parts)
    for y in range(0, 12, 5):
        for z in range(0, 16, 4):
            cell = parts[:, y : y + 5, z : z + 4]
            result[:, y : y + 5, z : z + 4] = cell.mean((1, 2), keepdim=True)
    return result


def _cubic() -> nn.Module:
    return settle(Cubic((3, 12, 16), 6).double())


def _weighted() -> nn.Module:
    return settle(Weighted((3, 12, 16), 6).double())


def _tiny() -> Tensor:
    return pictures(height=6, width=8)


ORACLES: dict[str, Oracle] = {
    "grad_cam": Oracle(
        "Zhou et al. 2016: CAM / (h w) under a pooled linear head", plain, _zhou, layer="relu2", bites=_cut
    ),
    "grad_cam_pp": Oracle("equation 19, cell by cell", curved, _plus_plus, layer="act2", bites=_cut),
    "hires_cam": Oracle("sum of gradient x activation, channel by channel", curved, _hires, layer="act2"),
    "layer_cam": Oracle(
        "positive gradients x activation, channel by channel", curved, _layer_cam, layer="act2", bites=_cut
    ),
    "xgrad_cam": Oracle("weights of axiom-based Grad-CAM by hand", curved, _xgrad, layer="act2", bites=_cut),
    "ablation_cam": Oracle("a loop over single channels", residual, _ablation, layer="layer2", bites=_cut),
    "feature_maps": Oracle(
        "the first modules called one after another", plain, lambda net, x, c: net[:3](x).detach(), layer="conv2"
    ),
    "channel_effects": Oracle(
        "a loop over single channels",
        residual,
        lambda net, x, c: drops_by_hand(net, net.layer1.bn2, x, c)[0],
        layer="layer1.bn2",
    ),
    "saliency": Oracle("central differences", curved, differences, images=_tiny, rtol=1e-6, atol=1e-9),
    "input_x_gradient": Oracle(
        "central differences x picture",
        curved,
        lambda net, x, c: x * differences(net, x, c),
        images=_tiny,
        rtol=1e-6,
        atol=1e-9,
    ),
    "integrated_gradients": Oracle(
        "closed form of a cubic polynomial", _cubic, lambda net, x, c: net.integrated(x, c), options={"steps": 4}
    ),
    "smooth_grad": Oracle(
        "the same noise drawn by hand", curved, _smooth, options={"samples": 4, "sigma": 0.2, "seed": 3}
    ),
    "guided_backprop": Oracle(
        "Springenberg et al. 2015 as transposed convolutions",
        plain,
        lambda net, x, c: rule_by_hand(net, x, c, gate=True),
    ),
    "deconvnet": Oracle(
        "Zeiler and Fergus 2014 as transposed convolutions",
        plain,
        lambda net, x, c: rule_by_hand(net, x, c, gate=False),
    ),
    "guided_grad_cam": Oracle(
        "product of the two closed forms", plain, _guided_cam, layer="relu2", options={"interpolate": "nearest"}
    ),
    "occlusion": Oracle(
        "closed form of a linear model", _weighted, _linear_occlusion, options={"window": (5, 4), "stride": (5, 4)}
    ),
}
