"""Messages stay short whatever the value is, and name the channels that the model takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import explainers
from explainers import BadImages, Contrast, Sum, Through, Unit, evaluate, explain, saliency
from explainers.errors import kind_of, shorten

IMAGES = torch.rand(1, 3, 16, 16)


def network(channels: int = 3) -> nn.Sequential:
    layers = nn.Conv2d(channels, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
    return nn.Sequential(*layers).eval()


NET: Any = network()


LARGE = torch.rand(40, 40)
WRONG: list[Callable[[Any], Any]] = [
    lambda v: explainers.grad_cam(NET, IMAGES, forward=v if isinstance(v, torch.Tensor) else type(v)),
    lambda v: explainers.grad_cam(NET, IMAGES, through=v),
    lambda v: explainers.grad_cam(NET, IMAGES, through=(NET, v)),
    lambda v: explainers.grad_cam(NET, IMAGES, layer=[v]),
    lambda v: explainers.grad_cam(NET, IMAGES, target=[v]),
    lambda v: explainers.grad_cam(NET, IMAGES, Unit(NET[0], v)),
    lambda v: explainers.saliency(NET, IMAGES, Through(0, NET[2], [99])),
    lambda v: explainers.occlusion(NET, IMAGES, baseline={"with": v}),
    lambda v: explainers.occlusion(NET, IMAGES, budget=v),
    lambda v: explainers.lime(NET, IMAGES, masks=[v]),
    lambda v: explainers.lrp(NET, IMAGES, rule={"*": v}),
    lambda v: explain(v, NET, IMAGES),
    lambda v: explain("saliency", NET, IMAGES, score=v),
    lambda v: evaluate(NET, IMAGES, "saliency", options=v),
    lambda v: evaluate(NET, IMAGES, "saliency", metrics=[v]),
    lambda v: explainers.compare_models(NET, NET, IMAGES, tolerance=v),
    lambda v: explainers.overlay(LARGE, LARGE, colors=v),
    lambda v: explainers.smooth("saliency", augment=explainers.Augment(zoom=v)),
    lambda v: explainers.sweep("grad_cam", NET, IMAGES, layers=v),
    lambda v: Contrast(v, 1),
    lambda v: explainers.BoxScores(torch.tensor([[0.0, 0, 1, 1]]), v),
    lambda v: explainers.MaskScores(torch.ones(4, 4), v),
    lambda v: explainers.fuse([IMAGES[:, 0]], v),
    lambda v: explainers.clip_gradients(NET, norm=v).__enter__(),
]


def test_messages_do_not_print_networks_tensors_or_arrays() -> None:
    for call in WRONG:
        for value in (NET, LARGE, LARGE.numpy()):
            with pytest.raises((TypeError, ValueError)) as caught:
                call(value)
            text = str(caught.value)
            assert "\n" not in text and len(text) < 400, text
            assert not any(part in text for part in ("(0): ", "tensor([", "array([", "[[")), text


def test_values_are_shortened_and_named_with_their_article() -> None:
    assert repr(Through(LARGE.argmax(1), NET, [1])) == (
        "Through(target=Tensor of shape (40,), layer=Sequential(...), channels=(1,))"
    )
    assert repr(Unit("0", 3, at=(1, 2))) == "Unit(layer='0', channel=3, at=(1, 2))" and "(0)" not in repr(Sum(NET))
    assert shorten(LARGE.numpy()) == "array of shape (40, 40)" and shorten(saliency) == "function saliency"
    assert len(shorten("x" * 500)) < 100 and len(shorten(list(range(1000)))) < 100
    for value, words in ((LARGE.numpy(), "a NumPy array"), (1, "an int"), (None, "None"), (NET, "a Sequential")):
        assert kind_of(value) == words
    assert kind_of(nn.Linear) == "the class Linear" and kind_of(len) == kind_of(saliency) == "a function"


class Tiled(nn.Module):
    """A network without convolutions on the image, whose error message does not name the channels."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.head = nn.Parameter(torch.rand(3, 1, 1)), nn.Linear(3 * 256, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head((x - self.mean).flatten(1))
        return scores


def test_a_wrong_number_of_channels_is_named_by_every_function() -> None:
    wrong = torch.rand(1, 4, 16, 16)
    calls: tuple[Callable[[nn.Module], Any], ...] = (
        lambda model: saliency(model, wrong),
        lambda model: explainers.occlusion(model, wrong, window=8, stride=8),
        lambda model: explainers.list_layers(model, wrong),
        lambda model: evaluate(model, wrong, torch.rand(1, 4, 4), metrics="deletion", controls=False),
        lambda model: saliency(model, wrong, forward=lambda batch: model(batch)),
    )
    refusal = BadImages, explainers.UnsupportedModel
    for model in (network(), network().train(), Tiled().eval()):
        for call in calls:
            with pytest.raises(refusal, match=r"4 channels, but the model takes 3|training"):
                call(model)


def test_clips_as_images_with_more_channels() -> None:
    clips = torch.rand(2, 3, 4, 8, 8)
    layers = nn.Conv3d(3, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(4, 3)
    model = nn.Sequential(*layers).eval()
    found = saliency(model, clips.flatten(1, 2), 1, forward=lambda images: model(images.unflatten(1, (3, 4))))
    leaf = clips.clone().requires_grad_()
    model(leaf)[:, 1].sum().backward()
    torch.testing.assert_close(found.unflatten(1, (3, 4)), leaf.grad)
    torch.testing.assert_close(saliency(model, clips, 1), leaf.grad)
    with pytest.raises(BadImages, match=r"For a single video \[C, T, H, W\], give images\[None\]"):
        saliency(model, clips[0], 1)
