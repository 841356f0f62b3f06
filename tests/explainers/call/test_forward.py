"""`forward=`: models with additional inputs, keyword arguments, dicts and custom methods, for every method.

The oracle is a module written by hand that runs the model in the same way.
"""

from __future__ import annotations

import gc
import weakref
from functools import partial

import pytest
import torch
from torch import Tensor, nn

import explainers
from explainers import METHODS, BadOption, UnsupportedModel, explain, grad_cam, list_layers, saliency, unit
from tests.support.calls import call
from tests.support.nets import Written, random_images, residual, settle
from tests.support.traces import nothing_left

META = torch.tensor([[0.4, -0.7]], dtype=torch.float64)


class TwoInputs(nn.Module):
    """Images and numbers, both keyword-only; both are required.

    Numbers that are `joined` to the features need one row for each image of a batch.
    """

    def __init__(self, joined: bool = False) -> None:
        super().__init__()
        self.joined = joined
        self.conv1, self.act1 = nn.Conv2d(3, 6, 3, padding=1), nn.ReLU()
        self.conv2, self.act2 = nn.Conv2d(6, 8, 3, stride=2, padding=1), nn.ReLU()
        self.gate, self.head = nn.Linear(2, 8), nn.Linear(10 if joined else 8, 5)
        settle(self.double())

    def forward(self, *, pixel_values: Tensor, meta: Tensor) -> Tensor:
        maps = self.embedded(pixel_values)
        return self.head(torch.cat([maps, meta], 1) if self.joined else maps + self.gate(meta))

    def embedded(self, images: Tensor) -> Tensor:
        return self.act2(self.conv2(self.act1(self.conv1(images)))).mean((2, 3))


def from_dict() -> nn.Module:
    """It takes a dict and returns a dict."""
    return Written(lambda self, batch: {"logits": self.net(batch["image"])}, net=residual()).eval()


def by_hand(model: nn.Module, run) -> nn.Module:
    """The oracle: an ordinary module around the model."""
    return Written(lambda self, images: run(self.model, images), model=model).eval()


def with_meta(model, images):
    return model(pixel_values=images, meta=META.to(images))


def with_dict(model, images):
    return model({"image": images})


@pytest.fixture
def network():
    net = TwoInputs()
    return net, partial(with_meta, net), by_hand(net, with_meta)


def assert_same(name, net, oracle, images, forward, layer, **options):
    """The method has the same result, or both calls are refused by the same error."""

    def result(model, **given):
        try:
            return call(name, model, images, 1, **options, **given)
        except explainers.ExplainerError as refused:
            return type(refused)

    takes_layer = METHODS[name].takes_layer
    expected = result(oracle, **({"layer": f"model.{layer}"} if takes_layer else {}))
    found = result(net, forward=forward, **({"layer": layer} if takes_layer else {}))
    if isinstance(expected, type):
        assert found is expected
    else:
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)
        assert METHODS[name].family == "control" or found.abs().sum() > 0


@pytest.mark.sample
@pytest.mark.parametrize("name", METHODS)
def test_every_method_equals_a_handwritten_module(name):
    for net, run, layer in ((TwoInputs(), with_meta, "conv2"), (from_dict(), with_dict, "net.layer2")):
        assert_same(name, net, by_hand(net, run), random_images(2), partial(run, net), layer)


@pytest.mark.sample
@pytest.mark.parametrize("name", METHODS)
def test_one_image_and_a_function_with_a_fixed_batch_size(name):
    """If the second input does not scale with the batch, variants run one by one with the same result."""
    net = TwoInputs(joined=True)
    wide = by_hand(net, lambda model, images: model(pixel_values=images, meta=META.expand(len(images), -1)))
    for size in [{}, {"batch_size": 5}] if METHODS[name].long else [{}]:
        assert_same(name, net, wide, random_images(1), partial(with_meta, net), "conv2", **size)


def test_functions_around_the_methods_take_the_model_with_its_own_layers(network):
    net, forward, oracle = network
    images, own, prefixed = random_images(2), {"layer": "conv2"}, {"layer": "model.conv2"}

    def explained(model, layer, **options):
        found = explain("grad_cam", model, images, layer=layer, **options)
        codes = [[finding.code for finding in row] for row in found.findings]
        return found.map, found.scores, found.target, found.layer.removeprefix("model."), codes

    a, b = explained(net, "conv2", forward=forward), explained(oracle, "model.conv2")
    torch.testing.assert_close(a[:2], b[:2])
    assert a[2:] == b[2:]
    for name, function, given, prefix in (
        ("sweep of Grad-CAM", lambda *a, **k: [*explainers.grad_cam_sweep(*a, 1, **k).values()], {}, {}),
        ("sweep", lambda *a, **k: [*explainers.sweep("layer_cam", *a, 1, **k).values()], {}, {}),
        ("parts", lambda *a, **k: explainers.full_gradients(*a, 1, **k).total(), {}, {}),
        ("factors", lambda *a, **k: explainers.feature_factors(*a, 1, components=2, **k).maps, {}, {}),
        ("smooth", lambda *a, **k: explainers.smooth("saliency", sigma=0.1, samples=3)(*a, **k).mean, {}, {}),
        ("module", partial(grad_cam, target=1), {"layer": net.conv2}, prefixed),
        ("unit", saliency, {"target": unit("conv2", 1, at="max")}, {"target": unit("model.conv2", 1, at="max")}),
        ("score of a unit", partial(call, "occlusion"), {"target": unit("conv2", 1, at="max")},
         {"target": unit("model.conv2", 1, at="max")}),
        ("through", partial(saliency, target=1), {"through": ("conv2", [1, 3])}, {"through": ("model.conv2", [1, 3])}),
        ("variants", partial(explainers.score_cam, target=1), own, prefixed),
    ):  # fmt: skip
        found, expected = function(net, images, forward=forward, **given), function(oracle, images, **prefix)
        torch.testing.assert_close(found, expected, msg=name)
    towards = explainers.Similarity(torch.ones(8))
    expected = saliency(by_hand(net, TwoInputs.embedded), images, towards)
    torch.testing.assert_close(saliency(net, images, towards, forward=net.embedded), expected)


def test_layers_are_those_that_the_function_runs(network):
    net, forward, oracle = network
    images = random_images(1)
    expected = [(each.name, each.grid) for each in list_layers(oracle, images) if each.name != "model"]
    layers = {each.name: each for each in list_layers(net, images, forward=forward)}
    gc.collect()
    assert [(f"model.{name}", each.grid) for name, each in layers.items()] == expected
    assert layers["conv2"].receptive_field((0, 0)) == (0, 0, 3, 3)
    assert explainers.default_layer(net, images, forward=forward) == "act2"
    with pytest.raises(TypeError):
        explainers.default_layer(net, images)
    assert "head" not in [each.name for each in list_layers(net, images, forward=net.embedded)]


def test_one_row_per_image_works_without_variants_and_raises_with_variants():
    """Variants of one image would be combined with the numbers of another, without an error if both have two rows."""
    net, images, rows = TwoInputs(joined=True), random_images(2), torch.cat([META, -2 * META])

    def forward(images, rows=rows):
        return net(pixel_values=images, meta=rows)

    for name in ("saliency", "grad_cam", "deep_lift"):
        found = METHODS[name](net, images, 1, forward=forward)
        for image, row, own in zip(images.split(1), rows.split(1), found, strict=True):
            alone = METHODS[name](net, image, 1, forward=partial(forward, rows=row))
            torch.testing.assert_close(own, alone[0])
    for name in ("occlusion", "integrated_gradients", "rise"):
        with pytest.raises(UnsupportedModel, match="one row per image.*one at a time"):
            METHODS[name](net, images, 1, forward=forward)
    maps = explainers.grad_cam_sweep(net, images, 1, forward=forward)
    torch.testing.assert_close(maps["act2"], grad_cam(net, images, 1, forward=forward))


def test_functions_and_models_that_cannot_be_explained_are_refused(network):
    net, forward, _ = network
    other, image = TwoInputs(), random_images(1)
    training, compiled = TwoInputs(), TwoInputs()
    training.act2.train()
    compiled.conv1.compile()
    whole = torch.compile(other)
    with torch.inference_mode():
        made = TwoInputs()
    for model, function, words in (
        (net, 3, r"forward=.*lambda images: model\(images, meta\)"),
        (net, partial(with_meta, other), "does not run any module of the given TwoInputs"),
        (training, partial(with_meta, training), r"training mode.*model\.eval\(\)"),
        (compiled, partial(with_meta, compiled), "compiled"),
        (whole, partial(with_meta, whole), "compiled"),
        (made, partial(with_meta, made), "inference"),
        (net, lambda images: net(pixel_values=images), "missing 1 required keyword-only argument: 'meta'"),
        ("resnet18", lambda images: images, "model is a str"),
    ):
        for name in ("saliency", "occlusion", "grad_cam"):
            with pytest.raises((BadOption, UnsupportedModel, TypeError), match=words):
                METHODS[name](model, image, 1, forward=function)
    with pytest.raises(explainers.LayerNotFound, match="TwoInputs has no layer 'conv3'. Did you mean 'conv2'"):
        grad_cam(net, image, 1, layer="conv3", forward=forward)
    with pytest.raises(BadOption, match="check_explainer copies"):
        explainers.check_explainer(saliency, model=net, forward=forward)


def test_a_compiled_function_runs_uncompiled():
    model = residual()
    for name in ("saliency", "grad_cam", "occlusion"):
        found = call(name, model, random_images(1), 1, forward=torch.compile(model, backend="eager"))
        torch.testing.assert_close(found, call(name, model, random_images(1), 1))


def test_the_model_is_unchanged_and_not_kept_alive():
    net = TwoInputs()
    forward = partial(with_meta, net)
    with nothing_left(net):
        explain("grad_cam", net, random_images(1), forward=forward)
        call("occlusion", net, random_images(1), 1, forward=forward)
    held = weakref.ref(net)
    del net, forward
    gc.collect()
    assert held() is None
