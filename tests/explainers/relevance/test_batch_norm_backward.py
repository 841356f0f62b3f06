"""A single image gets the same gradient as in a batch, unlike in torch's own backward pass of batch norm.

See `explainers/call/batch_norm.py` and docs/torch_batch_norm.md.
"""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from explainers import METHODS
from explainers.call.batch_norm import guard_batch_norms
from tests.support.calls import call
from tests.support.nets import Written, random_images, rel, settle


def stem() -> nn.Module:
    """Convolutions with batch norm, then tokens that are squared: the gradient has channels-last strides."""
    parts = {"stem": nn.Sequential(nn.Conv2d(3, 6, 3, 1, 1), nn.BatchNorm2d(6), nn.ReLU()), "head": nn.Linear(6, 5)}
    parts["patches"] = nn.Sequential(nn.Conv2d(6, 6, 4, 4), nn.BatchNorm2d(6))
    net = Written(lambda net, x: net.head(net.patches(net.stem(x)).flatten(2).mT.square().mean(1)), **parts)
    return settle(net.double())


NAMES = ("saliency", "grad_cam", "full_grad", "score_cam")
"""Methods with each kind of backward pass: to the images, to a layer, to all biases, and none."""


def test_the_smallest_case(capsys):
    """The example of the documentation, with the documented result."""
    page = (Path(__file__).parents[3] / "docs" / "torch_batch_norm.md").read_text(encoding="utf-8")
    example = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert example

    exec(compile(example[1], "torch_batch_norm.md", "exec"), {})

    promised = re.search(r"print\(.*# ([\d.]+)", example[1])
    assert promised and capsys.readouterr().out.strip() == promised[1]


@pytest.mark.parametrize("name", NAMES)
def test_one_image_has_the_same_map_as_in_a_batch(name):
    net, x = stem(), random_images(2)
    options = {"layer": "stem.0"} if METHODS[name].takes_layer else {}
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


SHAPES = [(1, 6, 4, 5), (1, 6, 1, 5), (1, 6, 1, 1), (1, 6, 2, 4, 5), (1, 6, 7), (1, 1, 4, 5)]


def test_every_memory_format_of_gradient_and_input():
    """Identity: strides do not change values."""
    forms = [(last, batch) for last in (False, True) for batch in (0, 1, 6, 7, 5000)]
    for shape, training in product(SHAPES, (False, True)):
        x, gradient = torch.randn(shape).double(), torch.randn(shape).double()
        mean, variance, weight, bias = torch.rand(4, shape[1]).double() + 0.5
        if training and x[:, 0].numel() == 1:
            continue  # no variance

        def backward(x: Tensor, gradient: Tensor, guard: bool) -> Tensor:
            leaf = x.detach().requires_grad_()
            y = F.batch_norm(leaf, mean.clone(), variance.clone(), weight, bias, training)  # noqa: B023
            if guard:
                guard_batch_norms(y)
            return torch.autograd.grad(y, leaf, gradient)[0]

        expected = backward(x, gradient, False)
        for form, other in product(forms, forms):
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
