"""Messages name the argument that was meant, stay short, and say how to give the right model and images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import explainers
from explainers import METHODS, BadImages, BadOption, Contrast, Sum, Through, Unit, evaluate, explain, saliency
from explainers.errors import kind_of, shorten

IMAGES = torch.rand(1, 3, 16, 16)


def network(channels: int = 3) -> nn.Sequential:
    layers = nn.Conv2d(channels, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
    return nn.Sequential(*layers).eval()


NET: Any = network()


@pytest.mark.parametrize("name", ["grad_cam", "occlusion"])
def test_methods_are_accepted_as_functions(name: str) -> None:
    function = getattr(explainers, name)
    by_name = explain(name, NET, IMAGES, 1)
    for method in (function, METHODS[name]):
        found = explain(method, NET, IMAGES, 1)
        assert found.method == name and torch.equal(found.map, by_name.map)
        judged = evaluate(NET, IMAGES, method, metrics="deletion", controls=False, steps=4)
        assert judged.method == name
        ranked = explainers.recommend(NET, IMAGES, methods=[method], steps=4, layers=["1"])
        assert [row.method for row in ranked.rows] == [name]
    if METHODS[name].takes_layer:
        assert list(explainers.sweep(function, NET, IMAGES, 1, layers=["0", "1"])) == ["0", "1"]


def test_other_functions_are_refused_as_methods() -> None:
    for wrong, words in ((lambda *_: None, "is not a method"), (NET, "a Sequential"), (None, "None"), (3, "an int")):
        with pytest.raises(BadOption, match=words):
            explain(wrong, NET, IMAGES)


@pytest.mark.parametrize(
    ("call", "meant"),
    [
        (lambda: explainers.grad_cam(NET, IMAGES, targets=1), "target"),
        (lambda: explainers.grad_cam(NET, IMAGES, layers="0"), "layer"),
        (lambda: explainers.grad_cam(NET, IMAGES, target_layer="0"), "layer"),
        (lambda: explainers.grad_cam(NET, inputs=IMAGES), "images"),
        (lambda: explainers.integrated_gradients(NET, IMAGES, n_step=8), "steps"),
        (lambda: explainers.integrated_gradients(NET, IMAGES, baselines=0), "baseline"),
        (lambda: explainers.occlusion(NET, IMAGES, sliding_window_shapes=(3, 4, 4)), "window"),
        (lambda: explainers.occlusion(NET, IMAGES, perturbations_per_eval=8), "batch_size"),
        (lambda: explain("grad_cam", NET, IMAGES, targets=1), "target"),
        (lambda: explain("grad_cam", NET, IMAGES, reduction="sum"), "reduce"),
        (lambda: explain("grad_cam", NET, IMAGES, forward_func=NET), "forward"),
        (lambda: evaluate(NET, IMAGES, "saliency", targets=1), "target"),
        (lambda: explainers.recommend(NET, IMAGES, targets=1), "target"),
        (lambda: explainers.list_layers(NET, IMAGES, forwards=NET), "forward"),
        (lambda: explainers.default_layer(NET, image=IMAGES), "images"),
    ],
)
def test_a_misspelled_keyword_is_answered_by_the_one_that_was_meant(call: Callable[[], Any], meant: str) -> None:
    with pytest.raises(BadOption, match=f"has no option '.*'. Did you mean '{meant}'\\? Available options"):
        call()


def test_a_missing_argument_is_named() -> None:
    with pytest.raises(TypeError, match="needs the argument 'images'"):
        explainers.grad_cam(NET)
    with pytest.raises(TypeError, match="needs the argument 'model'"):
        explainers.grad_cam()


LARGE = torch.rand(40, 40)
WRONG: list[Callable[[Any], Any]] = [
    lambda v: explainers.grad_cam(NET, IMAGES, forward=v if isinstance(v, torch.Tensor) else type(v)),
    lambda v: explainers.grad_cam(NET, IMAGES, through=v),
    lambda v: explainers.grad_cam(NET, IMAGES, through=("0", v)),
    lambda v: explainers.grad_cam(NET, IMAGES, through=(NET, v)),
    lambda v: explainers.grad_cam(NET, IMAGES, relu=v),
    lambda v: explainers.grad_cam(NET, IMAGES, layer=[v]),
    lambda v: explainers.grad_cam(NET, IMAGES, target=[v]),
    lambda v: explainers.grad_cam(NET, IMAGES, Unit(NET[0], v)),
    lambda v: explainers.saliency(NET, IMAGES, Through(0, NET[2], [99])),
    lambda v: explainers.occlusion(NET, IMAGES, window=v),
    lambda v: explainers.occlusion(NET, IMAGES, baseline={"with": v}),
    lambda v: explainers.occlusion(NET, IMAGES, batch_size=v),
    lambda v: explainers.occlusion(NET, IMAGES, budget=v),
    lambda v: explainers.integrated_gradients(NET, IMAGES, steps=v),
    lambda v: explainers.lime(NET, IMAGES, masks=[v]),
    lambda v: explainers.lrp(NET, IMAGES, rule={"*": v}),
    lambda v: explain("grad_cam", NET, IMAGES, reduce=v),
    lambda v: explain(v, NET, IMAGES),
    lambda v: evaluate(NET, IMAGES, "saliency", controls=v),
    lambda v: evaluate(NET, IMAGES, "saliency", options=v),
    lambda v: explainers.recommend(NET, IMAGES, budget=v),
    lambda v: explainers.sweep("grad_cam", NET, IMAGES, layers=v),
    lambda v: Contrast(v, 1),
    lambda v: explainers.BoxScores(torch.tensor([[0.0, 0, 1, 1]]), v),
    lambda v: explainers.MaskScores(torch.ones(4, 4), v),
    lambda v: explainers.fuse([IMAGES[:, 0]], v),
    lambda v: explainers.regions(IMAGES[0, 0], (4, 4), threshold=v),
    lambda v: explainers.clip_gradients(NET, norm=v).__enter__(),
    lambda v: explainers.record_gradients(NET, statistics=[v]).__enter__(),
]


@pytest.mark.parametrize("index", range(len(WRONG)))
@pytest.mark.parametrize("value", [NET, LARGE, LARGE.numpy()], ids=["network", "tensor", "array"])
def test_messages_do_not_print_networks_tensors_or_arrays(index: int, value: Any) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        WRONG[index](value)
    text = str(caught.value)
    assert "\n" not in text and len(text) < 400, text
    assert not any(part in text for part in ("(0): ", "tensor([", "array([", "[[")), text


def test_targets_of_a_module_have_a_short_repr() -> None:
    assert repr(Unit(NET, 3)) == "Unit(layer=Sequential(...), channel=3, at=None)"
    assert repr(Unit("0", 3, at=(1, 2))) == "Unit(layer='0', channel=3, at=(1, 2))"
    assert repr(Through(LARGE.argmax(1), NET, [1])) == (
        "Through(target=Tensor of shape (40,), layer=Sequential(...), channels=(1,))"
    )
    assert repr(Sum(NET)) == "Sum(Sequential(...))"


def test_values_are_shortened_and_named_with_their_article() -> None:
    assert (
        shorten({"a": [NET, LARGE, 1.5, "text"]}) == "{'a': [Sequential(...), Tensor of shape (40, 40), 1.5, 'text']}"
    )
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


@pytest.mark.parametrize("model", [network(), network().train(), Tiled().eval()], ids=["plain", "training", "no_conv"])
@pytest.mark.parametrize(
    "call",
    [
        lambda model, x: saliency(model, x),
        lambda model, x: explainers.occlusion(model, x, window=8, stride=8),
        lambda model, x: explain("integrated_gradients", model, x, steps=2),
        lambda model, x: explainers.list_layers(model, x),
        lambda model, x: evaluate(model, x, torch.rand(1, 4, 4), metrics="deletion", controls=False),
        lambda model, x: saliency(model, x, forward=lambda batch: model(batch)),
    ],
)
def test_a_wrong_number_of_channels_is_named(model: nn.Module, call: Callable[..., Any]) -> None:
    with pytest.raises((BadImages, explainers.UnsupportedModel), match=r"4 channels, but the model takes 3|training"):
        call(model, torch.rand(1, 4, 16, 16))


def test_the_remedy_depends_on_the_channels() -> None:
    for model, shape, remedy in (
        (network(), (1, 1, 16, 16), "has 1 channel, but the model takes 3.*images.expand"),
        (network(1), (1, 3, 16, 16), "has 3 channels, but the model takes 1.*images.mean"),
        (network(), (1, 16, 16, 3), "images.permute"),
        (network(7), (1, 3, 16, 16), r"Give images \[N, 7, H, W\]"),
    ):
        with pytest.raises(BadImages, match=remedy):
            saliency(model, torch.rand(shape))


def test_errors_of_the_network_itself_are_not_changed() -> None:
    class Broken(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError("the size of this network is wrong")

    with pytest.raises(ValueError, match="the size of this network is wrong"):
        saliency(Broken().eval(), IMAGES)


class Detector(nn.Module):
    """A module as in ultralytics: it holds the network and takes files, and `train` starts training."""

    def __init__(self) -> None:
        super().__init__()
        self.model = network()

    def __call__(self, source: Any = None) -> Any:
        return self.predict(source)

    def predict(self, source: Any) -> Any:
        return ["results"]

    def train(self, trainer: Any = None) -> Any:
        raise AssertionError("training started")


class Holder:
    """An object that is not a module."""

    def __init__(self) -> None:
        self.model = network()


@pytest.mark.parametrize("wrapper", [Detector(), Holder()], ids=["module", "object"])
def test_a_wrapper_of_the_network_is_refused_by_name(wrapper: Any) -> None:
    for call in (
        lambda: saliency(wrapper, IMAGES),
        lambda: explain("grad_cam", wrapper, IMAGES),
        lambda: explainers.list_layers(wrapper, IMAGES),
    ):
        with pytest.raises(TypeError, match=r"Pass the network itself: model\.model\."):
            call()
    assert saliency(wrapper.model, IMAGES).shape == IMAGES.shape


def test_a_module_without_forward_is_refused() -> None:
    with pytest.raises(TypeError, match="a ModuleList without a forward method"):
        saliency(nn.ModuleList([network()]), IMAGES)


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


def test_an_array_is_a_numpy_array() -> None:
    with pytest.raises(TypeError, match="images is a NumPy array"):
        saliency(NET, np.zeros((1, 3, 16, 16)))  # type: ignore[arg-type]
