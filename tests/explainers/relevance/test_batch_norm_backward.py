"""A single image gets the same gradient as in a batch, unlike in torch's own backward pass of batch norm.

See `explainers/call/batch_norm.py` and docs/torch_batch_norm.md.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

from explainers import METHODS
from tests.support.calls import call
from tests.support.nets import Written, random_images, settle


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

    assert expected.any()
    for strides in (torch.contiguous_format, torch.channels_last):
        found = call(name, net, x[:1].contiguous(memory_format=strides), 1, **options)
        torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-10)
