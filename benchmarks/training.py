"""What watching a training step costs; the unit is the same step with nobody watching."""

from __future__ import annotations

from collections.abc import Callable

import torch

import explainers

from .timing import UNIT

STEP = "bare training step"


def recording(size: int = 32, side: int = 64) -> dict[str, Callable[[], object]]:
    """A step of a small ResNet with SGD, bare and recorded; each recorded step enters and leaves its block."""
    from torchvision.models.resnet import BasicBlock, ResNet

    torch.manual_seed(0)
    net = ResNet(BasicBlock, [1, 1, 1, 1], num_classes=10).train()
    x, y = torch.randn(size, 3, side, side), torch.randint(0, 10, (size,))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()

    def recorded(**options: int) -> None:
        with explainers.record_gradients(net, **options):
            step()

    def clipped() -> None:
        with explainers.clip_gradients(net, norm=1.0):
            step()

    def clipped_by_torch() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(x), y).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()

    return {
        UNIT: step,
        "hooklens, record_gradients": recorded,
        "hooklens, with 32 bins": lambda: recorded(histograms=32),
        "hooklens, clip_gradients(norm)": clipped,
        "torch, clip_grad_norm_": clipped_by_torch,
    }
