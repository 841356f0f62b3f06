"""A single image gets the same gradient as in a batch, unlike in torch's own backward pass of batch norm.

See `explainers/network/batch_norm.py` and docs/torch_batch_norm.md.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from explainers import METHODS
from explainers.backward.operations import nodes
from explainers.network.batch_norm import guard_batch_norms
from tests.support.calls import NAMES, call
from tests.support.nets import random_images, rel, settle


class Stem(nn.Module):
    """Convolutions with batch norm, then tokens that are squared: the gradient has channels-last strides."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 6, 3, 1, 1), nn.BatchNorm2d(6), nn.ReLU())
        self.patches = nn.Sequential(nn.Conv2d(6, 6, 4, 4), nn.BatchNorm2d(6))
        self.head = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(self.stem(x)).flatten(2).transpose(1, 2)
        return self.head((tokens * tokens).mean(1))


# CAM is for networks whose last step is linear.
STEM = [name for name in NAMES if name != "cam" and METHODS[name].applies(Stem()) is None]


def test_torch_is_still_wrong():
    """The reason for all of this: a backward pass of torch's own. If this fails, the guard can be removed."""
    net, x = settle(Stem().double()), random_images(2)

    def own(x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        return torch.autograd.grad(net(x)[:, 1].sum(), x)[0]

    assert rel(own(x[:1]), own(x)[:1]) > 0.5


def test_the_smallest_case(capsys):
    """The example of the documentation, with the documented result."""
    page = (Path(__file__).parents[3] / "docs" / "torch_batch_norm.md").read_text(encoding="utf-8")
    example = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert example

    exec(compile(example[1], "torch_batch_norm.md", "exec"), {})

    promised = re.search(r"print\(.*# ([\d.]+)", example[1])
    assert promised and capsys.readouterr().out.strip() == promised[1]


@pytest.mark.parametrize("name", STEM)
def test_one_image_has_the_same_map_as_in_a_batch(name):
    net, x = settle(Stem().double()), random_images(2)
    options = {"layer": "stem.0"} if METHODS[name].takes_layer and name != "ablation_cam" else {}
    expected = call(name, net, x, [1, 2], **options)[:1]

    found = call(name, net, x[:1], 1, **options)

    assert expected.any()
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-10)


def _strides(shape: tuple[int, ...], last: bool, batch: int) -> list[int]:
    """Channels last or channels first, with any stride for the batch."""
    order = [1, *reversed(range(2, len(shape)))] if last else list(reversed(range(1, len(shape))))
    strides, step = [0] * len(shape), 1
    for axis in order:
        strides[axis], step = step, step * shape[axis]
    strides[0] = step if batch == 0 else batch
    return strides


def _stored(values: Tensor, last: bool, batch: int) -> Tensor:
    stored = torch.empty_strided(values.shape, _strides(tuple(values.shape), last, batch), dtype=values.dtype)
    return stored.copy_(values)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("shape", [(1, 6, 4, 5), (1, 6, 1, 5), (1, 6, 1, 1), (1, 6, 2, 4, 5), (1, 6, 7), (1, 1, 4, 5)])
def test_every_memory_format_of_gradient_and_input(shape, training):
    """Identity: strides do not change values."""
    torch.manual_seed(0)
    x, gradient = torch.randn(shape).double(), torch.randn(shape).double()
    mean, variance, weight, bias = torch.rand(4, shape[1]).double() + 0.5
    if training and x[:, 0].numel() == 1:
        pytest.skip("no variance")

    def backward(x: Tensor, gradient: Tensor, guard: bool) -> Tensor:
        leaf = x.detach().requires_grad_()
        y = F.batch_norm(leaf, mean.clone(), variance.clone(), weight, bias, training)
        if guard:
            guard_batch_norms(y)
        return torch.autograd.grad(y, leaf, gradient)[0]

    expected = backward(x, gradient, False)
    forms = [(last, batch) for last in (False, True) for batch in (0, 1, 6, 7, 5000)]
    for form in forms:
        for other in forms:
            found = backward(_stored(x, *form), _stored(gradient, *other), True)
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_instance_norm():
    """It is a batch norm over a batch of one, whose gradient a convolution gives channels last."""
    torch.manual_seed(0)
    x, gradient = torch.randn(1, 6, 4, 5), torch.randn(1, 6, 4, 5)

    def backward(gradient: Tensor) -> Tensor:
        leaf = x.clone().requires_grad_()
        y = F.instance_norm(leaf)
        guard_batch_norms(y)
        return torch.autograd.grad(y, leaf, gradient)[0]

    assert rel(backward(gradient.contiguous(memory_format=torch.channels_last)), backward(gradient)) < 1e-5


@pytest.mark.parametrize("architecture", ["levit_128s", "xcit_nano_12_p16_224"])
def test_levit_and_xcit(architecture):
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    net, x = settle(timm.create_model(architecture, num_classes=5)), random_images(2, 3, 224, 224).float()
    for name, options in (("saliency", {}), ("grad_cam", {"layer": [*dict(net.named_modules())][3]})):
        found, expected = call(name, net, x[:1], 1, **options), call(name, net, x, [1, 2], **options)[:1]
        assert expected.any() and rel(found, expected) < 1e-4


class _Patches(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x.flatten(2).transpose(1, 2), (x.shape[1],)).mean(1)


@pytest.mark.parametrize(
    ("tail", "batch_stride", "guarded"),
    [
        (nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()), 3 * 8 * 8, False),
        (nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()), 3, True),
        (_Patches(), 3 * 8 * 8, True),
    ],
)
def test_only_graphs_with_unusual_strides_are_guarded(tail, batch_stride, guarded):
    """Networks whose gradients always have the usual strides need no hooks, which call Python for each batch norm."""
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), tail, nn.Linear(4, 2)).eval()
    x = _stored(torch.randn(1, 3, 8, 8), batch_stride == 3, batch_stride).requires_grad_()
    total = net(x)[0, 1]
    guard_batch_norms(total, leaves=[x])
    norms = [node for node in nodes([total.grad_fn]) if node.name() == "NativeBatchNormBackward0"]
    assert [bool(node.metadata) for node in norms] == [guarded]
