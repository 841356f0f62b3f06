"""Truths of the class-activation maps."""

from __future__ import annotations

import torch
from nets import act_grad, curved, plain, residual
from torch import Tensor, nn

from .features import drops_by_hand
from .oracle import Oracle, cut


def zhou(net: nn.Module, x: Tensor, classes: list[int]) -> Tensor:
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


def _ablation(net: nn.Module, x: Tensor, classes: list[int]) -> Tensor:
    drops, a = drops_by_hand(net, net.layer2, x, classes)
    return torch.einsum("nk,nkhw->nhw", drops, a).relu()


ORACLES: dict[str, Oracle] = {
    "grad_cam": Oracle(
        "Zhou et al. 2016: CAM / (h w) under a pooled linear head", plain, zhou, layer="relu2", bites=cut
    ),
    "grad_cam_pp": Oracle("equation 19, cell by cell", curved, _plus_plus, layer="act2", bites=cut),
    "hires_cam": Oracle("sum of gradient x activation, channel by channel", curved, _hires, layer="act2"),
    "layer_cam": Oracle(
        "positive gradients x activation, channel by channel", curved, _layer_cam, layer="act2", bites=cut
    ),
    "xgrad_cam": Oracle("weights of axiom-based Grad-CAM by hand", curved, _xgrad, layer="act2", bites=cut),
    "ablation_cam": Oracle("a loop over single channels", residual, _ablation, layer="layer2", bites=cut),
}
